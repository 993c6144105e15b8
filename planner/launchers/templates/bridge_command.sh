NUM_LAYERS=@{num_layers}
MTP_NUM_LAYERS=@{mtp_num_layers}

# Words separated by blanks, for anything else, such as train.train_iters=100; they win over the file.
read -r -d '' -a EXTRA_OVERRIDES <<<"${EXTRA_OVERRIDES:-}" || true

# override FIELD: prints the value that wins, of overrides.txt and the further words, without quotes.
override() {
    {
        cat "$HERE/overrides.txt"
        printf '\n'
        printf '%s\n' "${EXTRA_OVERRIDES[@]}"
    } | awk -v key="$1=" '
        { sub(/^\+*/, "") }
        index($0, key) == 1 { value = substr($0, length(key) + 1) }
        END { print value }' | tr -d '"'
}

# What every node starts: a Python file and its words.
command_of_node() {
    COMMAND=("$HERE/lib/train.py" "$HERE/overrides.txt" "${EXTRA_OVERRIDES[@]}")
}

check_plan() {
    local virtual layout
    virtual=$(override model.virtual_pipeline_model_parallel_size)
    if [[ ${virtual/null/1} != "$VIRTUAL_STAGES" ]]; then
        fail "model.virtual_pipeline_model_parallel_size is $virtual, the plan has $VIRTUAL_STAGES virtual stages a rank"
    fi
    layout=(--pipeline-model-parallel-layout "$(override model.pipeline_model_parallel_layout)")
    if [[ ${layout[1]} == null ]]; then
        layout=(--hybrid-layer-pattern "$(override model.hybrid_layer_pattern)")
    fi
    check_sums "$WORLD_SIZE_OF_PLAN" "$DATA_PARALLEL" "$NUM_MICROBATCHES" "$VIRTUAL_STAGES" \
        --tensor-model-parallel-size "$(override model.tensor_model_parallel_size)" \
        --pipeline-model-parallel-size "$(override model.pipeline_model_parallel_size)" \
        --context-parallel-size "$(override model.context_parallel_size)" \
        "${layout[@]}" \
        --num-layers "$NUM_LAYERS" --mtp-num-layers "$MTP_NUM_LAYERS" \
        --micro-batch-size "$(override train.micro_batch_size)" \
        --global-batch-size "$(override train.global_batch_size)"
}
