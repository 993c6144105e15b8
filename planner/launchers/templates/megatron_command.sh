# Where the Megatron-LM checkout (core @{core_version}) lies on every node.
export MEGATRON_PATH=${MEGATRON_PATH:-$HOME/Megatron-LM}

MODEL_ARGS=(
@{model_args}
)

MOE_ARGS=(
@{moe_args}
)

PARALLEL_ARGS=(
@{parallel_args}
)

BATCH_ARGS=(
@{batch_args}
)

PRECISION_ARGS=(
@{precision_args}
)

OPTIMIZER_ARGS=(
@{optimizer_args}
)

# The arguments from here on change neither the time of a step nor its memory: they are yours.
TRAINING_ARGS=(
    --train-iters "${TRAIN_ITERS:-@{train_iters}}"
    --lr "${LR:-3e-4}"
    --min-lr "${MIN_LR:-3e-5}"
    --lr-decay-style "${LR_DECAY_STYLE:-cosine}"
    --lr-warmup-fraction "${LR_WARMUP_FRACTION:-0.01}"
    --weight-decay "${WEIGHT_DECAY:-0.1}"
    --adam-beta1 "${ADAM_BETA1:-0.9}"
    --adam-beta2 "${ADAM_BETA2:-0.95}"
    --clip-grad "${CLIP_GRAD:-1.0}"
    --init-method-std "${INIT_METHOD_STD:-0.02}"
    --norm-epsilon "${NORM_EPSILON:-@{norm_epsilon}}"
    --seed "${SEED:-1234}"
    --log-interval "${LOG_INTERVAL:-1}"
    --log-throughput
    --eval-interval "${EVAL_INTERVAL:-1000}"
    --eval-iters "${EVAL_ITERS:-0}"
    --distributed-timeout-minutes "${DISTRIBUTED_TIMEOUT_MINUTES:-30}"
@{training_args}
)

# Without DATA_PATH the run trains on made-up tokens, so that it can be tried as it is.
if [[ -n ${DATA_PATH:-} ]]; then
    read -r -d '' -a data_files <<<"$DATA_PATH" || true
    DATA_ARGS=(
        --data-path "${data_files[@]}"
        --split "${DATA_SPLIT:-99,1,0}"
        --tokenizer-type "${TOKENIZER_TYPE:-HuggingFaceTokenizer}"
        --tokenizer-model "${TOKENIZER_MODEL:?is needed beside DATA_PATH: the path of the tokenizer}"
    )
    # Without it the network has as many entries as the tokenizer, which of some published models are fewer.
    if [[ -n ${PADDED_VOCAB_SIZE:-} ]]; then
        DATA_ARGS+=(--padded-vocab-size "$PADDED_VOCAB_SIZE")
    fi
else
    DATA_ARGS=(
        --mock-data
        --tokenizer-type NullTokenizer
        --vocab-size @{vocab_size}
    )
fi
# Causal attention needs no mask from the loader, which would take seq_length^2 bytes a sample.
DATA_ARGS+=(--no-create-attention-mask-in-dataloader)

# Without CHECKPOINT_PATH nothing is saved.
CHECKPOINT_ARGS=()
if [[ -n ${CHECKPOINT_PATH:-} ]]; then
    CHECKPOINT_ARGS=(
        --save "$CHECKPOINT_PATH"
        --load "$CHECKPOINT_PATH"
        --save-interval "${SAVE_INTERVAL:-1000}"
        --ckpt-format @{checkpoint_format}
    )
fi

# Words separated by blanks, for anything else; with a flag given twice, Megatron takes the last.
read -r -d '' -a EXTRA_ARGS <<<"${EXTRA_MEGATRON_ARGS:-}" || true

COMMON_ARGS=(
    "${MODEL_ARGS[@]}" "${MOE_ARGS[@]}" "${PARALLEL_ARGS[@]}" "${BATCH_ARGS[@]}" "${PRECISION_ARGS[@]}"
    "${OPTIMIZER_ARGS[@]}" "${TRAINING_ARGS[@]}" "${DATA_ARGS[@]}" "${CHECKPOINT_ARGS[@]}" "${EXTRA_ARGS[@]}"
)

# What this node starts: a Python file and its words, those of its stages last.
command_of_node() {
    COMMAND=("@{entry_point}" "${COMMON_ARGS[@]}" "${STAGE_ARGS[@]}")
}

check_plan() {
    check_sums "$WORLD_SIZE_OF_PLAN" "$DATA_PARALLEL" "$NUM_MICROBATCHES" "$VIRTUAL_STAGES" "${COMMON_ARGS[@]}"
    check_megatron "$MEGATRON_PATH" @{script}
}
