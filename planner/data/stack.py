"""The training software: which overlaps and kernels it has, and what it costs beside them."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from planner.data.base import Data
from planner.data.model_spec import ModelSpec

SelectiveModule = Literal[
    "core_attn", "mla_up_proj", "moe_act", "layernorm", "mlp", "moe", "shared_experts", "gdn_norm_out"
]
"""Modules that selective recomputation may run again, in the words of Megatron-LM's --recompute-modules."""

CapturedModule = Literal["attn", "mlp", "moe_router", "moe_preprocess"]
"""Modules of a layer that CUDA graphs may hold, in the words of Megatron-LM's --cuda-graph-modules."""

CheckpointedModule = (
    SelectiveModule | Literal["every_second_product", "all_but_qkv", "all_but_qkv_proj", "all_but_products"]
)
"""These, or what torchtitan's checkpointing by operator runs again (all but attention and every second
product), or what policies under XLA do (`KEPT_BY_POLICY` in `cost/checkpointing.py`)."""


class SoftwareStack(Data):
    """Properties of the launcher and its libraries that change time or memory."""

    id: str
    """Name used in problems, such as `megatron-core`."""
    flash_attention: bool = True
    """Whether attention is fused, so that no score matrix is stored."""
    attention_kernel: Literal["newest", "mxfp8", "flash2", "flash1", "triton"] = "newest"
    """Generation of the fused attention: the chip's own best in 16 bits or, on Blackwell, in MXFP8
    (Megatron-LM's fp8_dot_product_attention), FlashAttention-2, FlashAttention, or its Triton form."""
    fused_softmax: bool = True
    """Without flash attention: whether scale, mask and softmax over the scores are one kernel in 16 bits."""
    longest_softmax: int = Field(default=16_383, ge=1)
    """Longest row of scores that this kernel takes: Transformer Engine's; Megatron-LM's own takes 4,096."""
    softmax_in_fp32: bool = True
    """Without fused softmax: whether scores are cast to fp32 for it."""
    fused_cross_entropy: bool = False
    """Whether the loss avoids extra fp32 copies of the logits."""
    loss_bytes_per_logit: float | None = Field(default=None, gt=0)
    """Bytes that the loss holds for each logit at its peak; null takes 4 if fused, else 10 [bytes]."""
    whole_loss_bytes_per_logit: float | None = Field(default=None, gt=0)
    """The same where one rank has all logits of a token, if their loss is then fused; null where it is as
    everywhere [bytes]."""
    loss_in_fp32: bool = False
    """With a fused loss: whether logits are cast to fp32 for it, and their gradient is cast back."""
    gathers_logits: bool = False
    """Whether tensor-parallel ranks gather their logits, and each takes the loss of the whole vocabulary."""
    metric_bytes_per_logit: float = Field(default=0.0, ge=0)
    """Bytes that metrics of training, which have no gradient, move for each logit [bytes]."""
    fused_pointwise: bool = True
    """Whether norms, activations, rotary positions and biases run as one kernel each."""
    norms_read_fp32: bool = False
    """Whether the input of a fused norm is cast to fp32 by a kernel of its own, and its gradient back."""
    keeps_activated_gate: bool = False
    """Whether a gated unit's activation is an operator of its own, whose output is kept as well, as with
    `plain_modules`."""
    biases_in_products: bool = True
    """Whether matrix products, or kernels that follow them anyway, take biases along; else each is added by a
    kernel of its own."""
    rotary_tables_in_layers: bool = False
    """Whether each layer holds sines and cosines of its own in fp32, and casts them every micro-batch."""
    fused_latent_rotary: bool = True
    """Whether one kernel turns queries and keys of latent attention by their positions (Megatron-LM core
    since 0.13)."""
    moe_permute_fusion: bool = True
    """Whether tokens are sorted to experts by one kernel that reads and writes each value once."""
    moe_permute_loops: bool = False
    """Where it is fused: whether its kernels loop over all experts for every token, which is slow where
    few of many are chosen (Transformer Engine before version 2.6)."""
    moe_router_fusion: bool = False
    """Whether scores, choice of experts and auxiliary loss are kernels of Transformer Engine
    (Megatron-LM's --moe-router-fusion), which the host launches sooner."""
    balances_by_loss: bool = True
    """Whether routers keep scores for an auxiliary loss, beside those that weigh experts."""
    experts_as_single_products: bool = False
    """Whether experts run as single products on several streams (Transformer Engine's GroupedLinear), rather
    than in one grouped kernel."""
    experts_apart: bool = False
    """Whether a rank's experts run one after the other as modules of their own, whose results are joined
    (SequentialMLP of Megatron-LM, without --moe-grouped-gemm)."""
    pads_narrow_experts: bool = False
    """With products in 8 bits or fewer: whether kernels of their own pad the rows of each expert, as where
    the router does not (Megatron-LM without --moe-router-padding-for-quantization) and none is dropped, or
    Transformer Engine before 2.3 copies them whatever their number."""
    selective_modules: tuple[CheckpointedModule, ...] = ("core_attn",)
    """What selective recomputation computes again, unless a plan says otherwise: core attention,
    up-projections of latent attention, the experts' activation, norms, dense MLPs, all of a layer's experts
    with their router, shared experts, the norm of linear attention's result."""
    moe_dispatcher: Literal["alltoall", "deduplicating"] = "alltoall"
    """How tokens reach experts: each copy on its own, or one copy to a rank or node that holds several of a
    token's experts (DeepEP, HybridEP)."""
    dispatcher_library: Literal["deepep", "hybridep"] = "deepep"
    """Whose kernels send one copy: those of DeepEP, whose buffers hold rows in flight, or of HybridEP, whose
    buffers hold all tokens of all ranks."""
    ep_overlap: bool = False
    """Whether the experts' exchanges run behind another micro-batch's computation."""
    ep_overlap_share: float = Field(default=0.52, ge=0, le=1)
    """Share of them that then does, as the host launches both micro-batches' pieces in turn. In traces of
    Qwen3-30B-A3B on 16 H100 exchanges took 8.25 s of a step (9.079 ms were 0.11% of them), which overlapping
    made 3.72 s shorter, its own slowdown included (NVIDIA-NeMo/Megatron-Bridge, skills,
    nemo-mbridge-perf-moe-comm-overlap). All of them where whole iterations are captured (guess)."""
    plain_modules: bool = False
    """Whether norms work in fp32 by plain operators, a gated unit multiplies by the activation it keeps, and
    grouped keys and values are repeated for every head, as in Megatron-LM before Transformer Engine."""
    repeats_groups: bool = False
    """Whether grouped keys and values are repeated for every head without `plain_modules` too, and so
    exchanged among context-parallel ranks."""
    joined_maps: Literal["all", "attention", "none"] = "all"
    """Whether queries, keys and values are one product, and gate and first map another, or the former alone.
    Maps of their own are a product each, and the gradients of the input that they share are added."""
    column_input_copies: bool = False
    """Whether queries, keys, values, gate and first map are maps of their own, each of which copies its input
    and reduces its input's gradient, where tensor-parallel ranks do not split the sequence. No value is then
    a view that keeps the output of a joined map alive."""
    gradient_bytes: float = Field(default=4.0, gt=0)
    """Bytes of a gradient where it is summed and reduced [bytes]."""
    step_gradient_bytes: float = Field(default=0.0, ge=0)
    """Where gradients are summed in fewer bits than fp32: bytes a parameter that the optimizer's step makes
    of its share of them [bytes]."""
    joined_gradient_bytes: float = Field(default=0.0, ge=0)
    """Bytes a parameter of gradients joined in one block, to be reduced or for the optimizer. No block that
    activations leave behind is as large, so that it lies beside them at the peak [bytes]."""
    optimizer_shard_size: int | None = Field(default=None, ge=1)
    """Neighbouring data-parallel ranks that share the optimizer state, and with full sharding the parameters;
    null where all of them do (InternEvo's zero1.size; data parallelism over Megatron-LM's
    --num-distributed-optimizer-instances; hybrid sharding)."""
    optimizer_step_bytes: float | None = Field(default=None, gt=0)
    """Bytes that plain operators of the optimizer's step, clipping included, move for each parameter of its
    shard; null takes fused kernels' [bytes]."""
    optimizer_tensor_launches: float = Field(default=0.0, ge=0)
    """Operators that the optimizer's step runs on every parameter tensor in turn, each as long as the host
    takes to launch it; 0 where its kernels take many tensors at once."""
    gradient_buckets_copied: bool = False
    """Whether gradients are copied into the bucket that is reduced, and back, by kernels amid the rest."""
    gradients_divided_apart: bool = False
    """Whether a kernel of its own divides gradients by the number of data-parallel ranks, before or after
    they are added up; else the collective takes their mean (Megatron-LM's --ddp-average-in-collective). With
    full sharding every micro-batch's are."""
    gradients_checked: bool = False
    """Whether the norm of every bucket is taken before it is reduced, to look for what is no number
    (Megatron-LM's --check-for-nan-in-loss-and-grad)."""
    parameters_broadcast: bool = False
    """Whether the distributed optimizer's step ends with each rank's parameters broadcast in turn, nothing
    hidden, and gradients are all-reduced; else they are gathered and scattered."""
    bucket_parameters: float | None = Field(default=None, gt=0)
    """Parameters of a bucket whose gradients are reduced at once; null takes Megatron-LM's."""
    later_stages_have_one_bucket: bool = False
    """Whether stages after the first reduce their gradients in one bucket, which begins when their last
    backward has ended, as Megatron-LM's do: they are done before the first."""
    tied_gradient_bytes: float | None = Field(default=None, gt=0)
    """Bytes of one value of a tied embedding's gradient between first and last stage; null takes
    `gradient_bytes` [bytes]."""
    output_buffers: int = Field(default=1, ge=1)
    """Micro-batches whose 16-bit logits the last stage holds, that of the loss among them."""
    scattered_gradient_bytes: float = Field(default=2.0, gt=0)
    """Bytes of a gradient on its way where every micro-batch scatters it (ZeRO-2, full sharding) [bytes]."""
    shard_copies: Literal["none", "gradients", "all"] = "none"
    """With full sharding: what the chip copies between its own place and the buffer of a collective, amid its
    computation: nothing, gradients (parts of one flat parameter: FSDP), gathered parameters too (FSDP2)."""
    shards_tensor_by_tensor: bool = False
    """With full sharding: whether every weight and gradient goes by a collective of its own, from a list of
    one tensor a rank that the host cuts and copies while the chip waits (DeepSpeed's ZeRO-3 of 2021)."""
    narrow_parameters: bool = False
    """With products in 8 bits or fewer: whether weights are kept in that format and its transpose alone
    (Megatron-LM's --fp8-param-gather), not beside the 16-bit ones; with a scale for each tensor they are
    gathered in it as well."""
    narrow_head: bool = False
    """With products in 8 bits or fewer: whether the vocabulary head is one of them (Megatron-LM's
    fp8_output_proj), rather than in 16 bits."""
    current_scaling: bool = False
    """With one scale a tensor: whether it follows from the tensor's own values, which are read once more for
    it, rather than from those of earlier steps."""
    scales_agreed_by: Literal["nobody", "tensor", "stage"] = "nobody"
    """With one 8-bit scale a tensor from earlier steps: which ranks agree on it after each pass of a chunk,
    those that divide tensors and sequences or all of a stage. The search's bounds leave it out."""
    row_scales: bool = False
    """Whether 8-bit products take a scale for each row and column (torchao's rowwise recipe), so that every
    operand is cast once along each dimension and travels in 16 bits."""
    clips_gradients: bool = True
    """Whether the norm of the gradients is taken each step and they are clipped to it."""
    clears_gradients: bool = True
    """Whether each step writes zeros over the gradients; else it lets go of them."""
    gradient_accumulation_fusion: bool = True
    """Whether weight gradients are added to the fp32 sum inside the matrix product."""
    gradient_placeholders: bool = False
    """Where they are: whether a 16-bit placeholder for each shape of weight stays (`get_dummy_wgrad` of
    Transformer Engine)."""
    dropout: bool = False
    """Whether dropout is on, which stores a mask of one byte a value."""
    dropout_in_gpt: bool = False
    """Whether it is on for models with learned positions alone, as in PaddleNLP, whose GPT has it by default
    and whose other networks have none."""
    softmax_drops: bool = False
    """Whether the fused softmax applies dropout too, rather than a kernel that reads and writes once more."""
    cp_exchange: Literal["p2p", "all_gather", "a2a", "a2a+p2p"] = "p2p"
    """How context-parallel ranks attend to all tokens (Megatron-LM's --cp-comm-type): keys and values around
    a ring, or gathered first; heads exchanged for tokens; or that inside a node and a ring between nodes."""
    tp_overlap_fraction: float = Field(default=0.0, ge=0, le=1)
    """Share of tensor-parallel communication hidden behind computation."""
    tp_userbuffers: bool = False
    """Whether Transformer Engine runs tensor-parallel products in pieces beside their collectives
    (--tp-comm-overlap), which hides what the pieces' time covers; `tp_overlap_fraction` then says nothing."""
    tp_narrow_sums: bool = True
    """With user buffers: whether they sum what per-tensor 8-bit products made in that format (`fp8_buf` of
    their configuration)."""
    tp_collectives_copy: bool = False
    """Whether gathers along the sequence copy what they brought, and scatters what they send, as the sequence
    is not the outermost dimension."""
    tp_backward_overlap: bool = True
    """Whether the backward pass gathers and reduces behind its matrix products (one device connection)."""
    reduces_along_trees: bool = True
    """Whether all-reduces between nodes may go along trees, where those are faster than a ring."""
    dp_overlap: bool = True
    """Whether gradient reduction and parameter gathering run behind computation."""
    p2p_overlap: bool = True
    """Whether pipeline sends run behind computation; else they block both stages."""
    p2p_overlap_interleaved: bool = False
    """Whether they do with virtual stages even where they block without."""
    p2p_after_gradient: bool = False
    """Where sends block: whether a stage sends an activation only when its next gradient has come."""
    p2p_partitioned: bool = False
    """Whether each tensor-parallel rank sends its share of an activation, which the receivers gather."""
    p2p_gradient_partitioned: bool = True
    """Where activations are parted, whether their gradients are too; else every tensor-parallel rank sends
    them whole (`is_grad_partitioned` of DeepSpeed's pipeline engine, off in that of 2021)."""
    p2p_sends_mask: bool = False
    """Whether the attention mask travels forward with an activation: a 16-bit value for every pair of
    positions, the same for all sequences, whole from every tensor-parallel rank."""
    forwards_per_layer: int = Field(default=1, ge=1)
    """Times that a layer's forward runs for each micro-batch, of which the backward knows the last alone."""
    tp_collectives_synchronise: bool = False
    """Whether the host waits for the chip before and after each reduction among tensor-parallel ranks, as
    timers around it do, so that it launches nothing while one runs."""
    host_layer_floor_ms: float = Field(default=0.0, ge=0)
    """Least time of one layer's forward pass, set by the host's kernel launches [ms]; 0 where CUDA graphs
    hold all of a layer."""
    captured_modules: tuple[CapturedModule, ...] = ()
    """Modules of a layer that CUDA graphs launch, where they do not hold all of it (Megatron-LM's
    --cuda-graph-modules); `moe_router` holds shared experts too."""
    waits_for_token_counts: bool = True
    """Whether the host waits for the chip to count the tokens of each expert before it launches their
    exchange, as where none is dropped (token_dispatcher.py, _maybe_dtoh_and_synchronize)."""
    step_host_ms: float = Field(default=5.0, ge=0)
    """Host work of a step that nothing hides, a guess: gradient norm, scalars, schedule [ms]."""
    context_gib: float = Field(default=1.0, ge=0)
    """Memory of the device context and libraries [GiB]."""
    communicator_gib: float = Field(default=0.64, ge=0)
    """Memory of the communicators of a group of three or more ranks [GiB]: each kind of group has some, and
    the job."""
    far_communicator_gib: float | None = Field(default=None, ge=0)
    """The same of a group that reaches beyond the chips that fast links join, whose rings have fewer
    channels; null takes `communicator_gib` [GiB]."""
    replica_communicator: bool = False
    """Whether the ranks of a replica have a communicator as well, as under DeepSpeed's pipeline engine."""
    switch_buffer_mib: float = Field(default=0.0, ge=0)
    """Memory that a communicator of three or more ranks holds for each of them below switches that add up
    (NVLink SHARP) [MiB]: what NCCL's log calls nvlsPerRankSize; 0 with NCCL_NVLS_ENABLE=0."""
    megatron_groups: bool = False
    """Whether Megatron-LM's groups beside those that share work have communicators as well: the ranks of a
    replica, of the distributed optimizer, of the shared embedding and of an expert layer."""
    plans_memory: bool = False
    """Whether memory is planned ahead, each stretch of the graph for itself. In a pipeline the gradients of a
    micro-batch then lie whole beside their sum, a forward that passes has a place beside that of a backward,
    and every stage but the last one for each micro-batch that may be in flight (OneFlow)."""
    allocated_fraction: float = Field(default=0.94, gt=0, le=1)
    """Allocated over reserved memory: what fragmentation leaves."""
    time_factor: dict[str, float] = Field(default_factory=dict)
    """Measured over predicted computation time, by chip id; 1 where absent."""
    source: str = ""
    """Where the figures come from."""

    def has_dropout(self, model: ModelSpec) -> bool:
        """Whether a model is trained with dropout."""
        return self.dropout or (self.dropout_in_gpt and model.position_embedding == "learned")

    def overlaps_sends(self, virtual_stages: int) -> bool:
        """Whether pipeline sends run behind computation, with so many virtual stages a rank."""
        return self.p2p_overlap or (virtual_stages > 1 and self.p2p_overlap_interleaved)
