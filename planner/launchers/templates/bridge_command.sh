NUM_LAYERS=@{num_layers}
MTP_NUM_LAYERS=@{mtp_num_layers}

# override FIELD: prints its value in overrides.txt, without quotes.
override() {
    awk -v key="$1=" 'index($0, key) == 1 { value = substr($0, length(key) + 1) } END { print value }' \
        "$HERE/overrides.txt" | tr -d '"'
}

# Words separated by blanks, for anything else, such as train.train_iters=100; they win over the file.
read -r -d '' -a EXTRA_OVERRIDES <<<"${EXTRA_OVERRIDES:-}" || true

# What every node starts: a Python file and its words.
command_of_node() {
    COMMAND=("$HERE/lib/train.py" "$HERE/overrides.txt" "${EXTRA_OVERRIDES[@]}")
}

check_plan() {
    check_sums "$WORLD_SIZE_OF_PLAN" "$DATA_PARALLEL" "$NUM_MICROBATCHES" "$VIRTUAL_STAGES" \
        --tensor-model-parallel-size "$(override model.tensor_model_parallel_size)" \
        --pipeline-model-parallel-size "$(override model.pipeline_model_parallel_size)" \
        --context-parallel-size "$(override model.context_parallel_size)" \
        --pipeline-model-parallel-layout "$(override model.pipeline_model_parallel_layout)" \
        --num-layers "$NUM_LAYERS" --mtp-num-layers "$MTP_NUM_LAYERS" \
        --micro-batch-size "$(override train.micro_batch_size)" \
        --global-batch-size "$(override train.global_batch_size)"
}
