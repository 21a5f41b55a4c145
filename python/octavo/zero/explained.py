# SPDX-License-Identifier: Apache-2.0
"""What torch's errors mean in a ZeRO engine, whose parameters are empty between their uses, or are parts. Each function
returns the error to raise in their place, or None where there is nothing to explain."""

from torch.optim import Optimizer

# What the C++ engine says where ranks send gradients of other graphs, of other sizes or of the same ones.
_OF_OTHER_GRAPHS = ("all ranks must make the same calls", "was sent a bucket of another step, plan or model")
_WAS_NOT_WHOLE = "is not whole on rank"  # in what Gathering says where memory is read that a parameter does not have


def in_forward(error: BaseException, *, is_compiled: bool, is_gathered: bool) -> RuntimeError | None:
    """`is_gathered`: modules gather their parameters, as in stage 3 without graphs."""
    if is_compiled and (_met_empty_memory(error) or _WAS_NOT_WHOLE in str(error)):
        return RuntimeError(
            "[zero.forward] a parameter was not whole where it was used. Four things do that in compiled graphs: code "
            "behind a break of a graph that reads a parameter of its own module; a function that Dynamo does not "
            "compile, because it raises an error or has reached the limit of recompilations (TORCH_LOGS=recompiles "
            "says why); a model that returns a view of a parameter; a parameter that is read outside of the model. Put "
            "the code into a method under torch.compiler.disable that calls modules, or use stage 1 or 2"
        )
    if is_gathered and _met_empty_memory(error):
        return RuntimeError(
            "[zero.forward] a parameter was read outside of its module's forward and backward passes, where it is not "
            "whole, for example because the model uses the weight of one layer directly in another: call the module "
            "that has it; read it in engine.gathered(), which must stay open until engine.backward is done if a "
            "gradient needs the parameter; or use stage 1 or 2"
        )
    return None


def in_backward(error: BaseException, *, is_compiled: bool, is_gathered: bool) -> RuntimeError | None:
    if is_gathered and _met_empty_memory(error):
        return RuntimeError(
            "[zero.backward] a module's parameters were not whole in its backward pass, which is found by the tensors "
            "that the module returns: let forward return what the loss is made of, in lists, dicts or dataclasses, and "
            "not keep it elsewhere. A parameter of which a module also uses .detach() must have that use after the "
            "others. Or use stage 1 or 2"
        )
    if is_gathered and _WAS_NOT_WHOLE in str(error):
        return RuntimeError(
            f"{error}. In a backward pass this happens, too, where torch.utils.checkpoint recomputes a part of a "
            f"module with use_reentrant=True: use_reentrant=False works"
        )
    if is_compiled and any(text in str(error) for text in _OF_OTHER_GRAPHS):
        return RuntimeError(
            f"{error}. In compiled runs this happens, too, where ranks take different branches of a module, which are "
            f"different graphs: let all ranks take the same ones. And where some ranks, but not all, have reached "
            f"Dynamo's limit of recompilations, and run without a graph: TORCH_LOGS=recompiles says why a rank "
            f"compiles anew, and torch._dynamo.config.recompile_limit is the limit"
        )
    return None


def in_step(error: BaseException, optimizer: Optimizer) -> RuntimeError | None:
    # torch names the operator where DTensors do not have it
    if not isinstance(error, NotImplementedError | RuntimeError) or "aten." not in str(error):
        return None
    if "mixed torch.Tensor and DTensor" in str(error):
        return RuntimeError(
            f"[zero.step] {type(optimizer).__name__} has states of whole parameters, but this rank steps only parts "
            f"of them: load the state of a whole model into the optimizer before octavo.initialize, and a checkpoint "
            f"of an engine by engine.load_checkpoint"
        )
    is_fused = any(group.get("fused") for group in optimizer.param_groups)
    return RuntimeError(
        f"[zero.step] {type(optimizer).__name__} works with operators that torch does not have for the parts of "
        f"parameters, which are DTensors ({str(error).splitlines()[0].rstrip('.')}): "
        f"{'make it without fused=True, or ' if is_fused else ''}take another optimizer"
    )


def _met_empty_memory(error: BaseException) -> bool:
    """Whether torch has found no memory where a parameter is that is not whole."""
    return "storage of size 0" in str(error)
