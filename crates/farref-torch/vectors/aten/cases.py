"""What PyTorch's own operators return: one case per line of JSON, for the tests of `src/aten`.

    python3 cases.py > cases.jsonl      the file that is kept here
    python3 cases.py SEED COUNT         so many cases made at random

A case has the overload, its arguments with all defaults, and the result or the text of the error. If arguments need
gradients, it also has a gradient of the result and what becomes of it. Elements are hex of little endian bytes. A test reads
`bool` results as errors: candle has none.
"""

import json
import random
import sys
import warnings

import torch

warnings.simplefilter("ignore")
INF, NAN = float("inf"), float("nan")
FLOATS = [torch.float32, torch.float64]
HALVES = [torch.float16, torch.bfloat16]
INTS = [torch.uint8, torch.int16, torch.int32, torch.int64]


def name_of(dtype):
    return str(dtype).replace("torch.", "")


def tensor_json(tensor):
    flat = torch.empty(tensor.numel(), dtype=tensor.dtype).copy_(tensor.detach().reshape(-1))
    data = flat.view(torch.uint8) if flat.numel() else torch.zeros(0, dtype=torch.uint8)
    if flat.dtype == torch.bool:
        data = flat.to(torch.uint8)
    return {"dtype": name_of(tensor.dtype), "shape": list(tensor.shape), "data": bytes(data.tolist()).hex(),
            "grad": tensor.requires_grad}  # fmt: skip


def argument_json(value, tensors):
    if value is None:
        return None
    if isinstance(value, torch.Tensor):
        for place, other in enumerate(tensors):
            if other is value:
                return {"tensor": place}
        tensors.append(value)
        return {"tensor": len(tensors) - 1}
    if isinstance(value, bool):
        return {"bool": value}
    if isinstance(value, int):
        return {"int": value}
    if isinstance(value, float):
        return {"float": repr(value)}
    if isinstance(value, str):
        return {"text": value}
    if isinstance(value, torch.dtype):
        return {"int": CODES[value]}
    if isinstance(value, torch.device):
        return {"device": str(value)}
    if isinstance(value, (list, tuple)) and value and isinstance(value[0], torch.Tensor):
        return {"tensors": [argument_json(item, tensors)["tensor"] for item in value]}
    assert isinstance(value, (list, tuple)), value
    return {"ints": list(value)}


CODES = {torch.uint8: 0, torch.int16: 2, torch.int32: 3, torch.int64: 4, torch.float16: 5, torch.float32: 6,
         torch.float64: 7, torch.bool: 11, torch.bfloat16: 15}  # fmt: skip


def case(overload, *given, **keywords):
    """Runs an operator and prints the case."""
    name, _, which = overload.partition(".")
    operator = getattr(getattr(torch.ops.aten, name), which or "default")
    values = []
    for place, wanted in enumerate(operator._schema.arguments):
        if place < len(given):
            values.append(given[place])
        else:
            values.append(keywords.get(wanted.name, wanted.default_value))
    tensors = []
    arguments = [argument_json(value, tensors) for value in values]
    printed = {"name": overload, "tensors": [tensor_json(tensor) for tensor in tensors], "arguments": arguments}
    try:
        result = operator(*given, **keywords)
        printed["result"] = tensor_json(result)
    except (RuntimeError, IndexError) as error:
        printed["error"] = str(error).split("\n")[0][:200]
    else:
        if result.requires_grad:
            shape = result.shape
            seed = (torch.arange(result.numel(), dtype=torch.float64) % 7 * 0.5 - 1).reshape(shape).to(result.dtype)
            printed["seed"] = tensor_json(seed)
            wanted = [tensor for tensor in tensors if tensor.requires_grad]
            gradients = torch.autograd.grad(result, wanted, seed, allow_unused=True)
            gradients = [torch.zeros_like(t) if g is None else g for t, g in zip(wanted, gradients)]
            printed["gradients"] = [tensor_json(gradient) for gradient in gradients]
    print(json.dumps(printed))


def given():
    """The cases that are kept."""
    a = torch.tensor([[1.0, -2.0], [3.0, 4.0]])
    b = torch.tensor([[0.5, 8.0], [-1.0, 2.0]])
    i = torch.tensor([[1, -2], [3, 4]])
    flags = torch.tensor([True, False])
    row, column = torch.tensor([10.0, 20.0]), torch.tensor([[5.0], [7.0]])

    def grad(tensor):
        return tensor.detach().clone().requires_grad_()

    for name in ("add", "sub", "mul", "div"):
        tensor, scalar = name + ".Tensor", name + ".Scalar"
        for x, y in [(a, b), (i, i), (a, row), (row, column), (a, i), (i, a), (a.double(), b), (a, torch.tensor(2.0)),
                     (torch.tensor(1.5), torch.tensor(2.5)), (torch.tensor(1), torch.tensor(2)),
                     (i, torch.tensor(0.5, dtype=torch.float64)), (a, torch.tensor(0.1, dtype=torch.float64)),
                     (i.int(), torch.tensor(5)), (i.int(), i), (i.short(), i.int()), (a.half(), b.bfloat16()), (a.half(), b),
                     (i.to(torch.uint8), i.short()), (i.to(torch.uint8), i.to(torch.uint8)), (torch.zeros(2, 0), torch.zeros(1)),
                     (torch.zeros(0, 3), torch.zeros(4, 1, 3)), (a, torch.zeros(3)), (torch.zeros(2, 3), torch.zeros(2, 2)),
                     (torch.zeros(4, 1, 3), torch.zeros(2, 3)), (torch.zeros(0), torch.zeros(3))]:  # fmt: skip
            case(tensor, x, y)
        for x, y in [(a, 3), (a, 0.5), (i, 7), (i, 0.5), (i.int(), 2**40), (i, 2**62), (a.half(), 0.1), (a.bfloat16(), 0.1),
                     (i.to(torch.uint8), 3), (i.to(torch.uint8), -3), (a.double(), 0.1), (torch.tensor(3), 2), (torch.tensor(3), 2.5),
                     (a, INF), (a, NAN), (torch.zeros(0), 1)]:  # fmt: skip
            case(scalar, x, y)
        case(tensor, grad(a), grad(b))
        case(tensor, grad(a), grad(row))
        case(tensor, grad(row), grad(column))
        case(tensor, grad(a.double()), grad(b))
        case(tensor, grad(a), b)
        case(tensor, i, grad(b))
        case(tensor, grad(torch.tensor(2.0)), grad(a))
        case(tensor, grad(a.half()), grad(b.half()))
        x = grad(a)
        case(tensor, x, x)
        case(scalar, grad(a), 2.5)
    for name in ("add", "sub"):
        case(name + ".Tensor", a, b, alpha=2)
        case(name + ".Tensor", a, b, alpha=-0.5)
        case(name + ".Tensor", i, i, alpha=3)
        case(name + ".Tensor", i, i, alpha=0.5)
        case(name + ".Tensor", i, a, alpha=0.5)
        case(name + ".Scalar", a, 0.5, alpha=2)
        case(name + ".Scalar", i, 5, alpha=2)
        case(name + ".Tensor", grad(a), grad(row), alpha=3)
        big = torch.tensor([2**63 - 1, -(2**63)])
        case(name + ".Scalar", big, 2)
        case(name + ".Tensor", big, big, alpha=2**62)
    case("mul.Scalar", torch.tensor([2**62, 3]), 5)
    case("add.Tensor", flags, torch.tensor([5, 6]))
    case("add.Tensor", flags, torch.tensor([255, 1], dtype=torch.uint8))
    case("add.Tensor", flags, flags)
    case("mul.Tensor", flags, flags)
    case("sub.Tensor", flags, flags)
    case("sub.Scalar", flags, 1)
    case("add.Scalar", flags, 1)
    case("add.Scalar", flags, 0.5)
    case("mul.Tensor", flags, row)
    case("div.Tensor", flags, flags)
    for mode in ("floor", "trunc", None, "round"):
        case("div.Tensor_mode", a, b, rounding_mode=mode)
        case("div.Tensor_mode", i, torch.tensor([2, -3]), rounding_mode=mode)
        case("div.Scalar_mode", i, -2, rounding_mode=mode)
        case("div.Scalar_mode", i, 0.4, rounding_mode=mode)
        case("div.Scalar_mode", i, 0, rounding_mode=mode)
        case("div.Scalar_mode", a, 0.0, rounding_mode=mode)
        case("div.Scalar_mode", torch.tensor([1.0, -1.0, 0.3, 1e30, INF]), 0.1, rounding_mode=mode)
        case("div.Tensor_mode", grad(a), grad(b), rounding_mode=mode)

    special = torch.tensor([0.0, -0.0, 1.0, -1.0, 0.5, -100.0, 100.0, INF, -INF, NAN])
    for name in ("neg", "relu", "exp", "log", "sqrt", "tanh", "sigmoid", "sin", "cos", "square"):
        finite = torch.tensor([0.0, 0.25, 1.0, 2.5, -1.0, -3.0, 90.0, -100.0])
        for x in (a, i, special, a.double(), a.half(), a.bfloat16(), i.to(torch.uint8), torch.zeros(0), torch.tensor(0.5), flags):
            case(name, x)
        case(name, grad(finite))
        case(name, grad(finite.double()))
        case(name, grad(torch.tensor(0.3)))
        case(name, grad(torch.tensor([0.5, 1.5]).half()))
    case("neg", torch.tensor([-(2**63)]))
    case("square", torch.tensor([2**40]))
    for base, exponent in [(a, 2), (a, 3), (a, 0), (a, 0.5), (a, -1), (a, -1.5), (i, 2), (i, 0), (i, -1), (i, 0.5), (i, 62),
                           (i.int(), 33), (i.to(torch.uint8), 3), (special, 2), (special, 0), (special, 0.5), (flags, 2)]:  # fmt: skip
        case("pow.Tensor_Scalar", base, exponent)
    for exponent in (2, 3, 0, 1, 0.5, -1):
        case("pow.Tensor_Scalar", grad(torch.tensor([0.5, 2.0, 0.0, 3.0])), exponent)
    case("pow.Tensor_Scalar", grad(torch.tensor([-2.0, -1.0])), 2)
    case("pow.Tensor_Scalar", grad(torch.tensor([-2.0, -1.0])), 3)
    case("pow.Scalar", 2, a)
    case("pow.Scalar", 2, torch.tensor([1, 3, 62, 64, -1]))
    case("pow.Scalar", 2.5, i)
    case("pow.Scalar", 0, grad(torch.tensor([0.0, 1.0, 2.0])))
    case("pow.Scalar", 2.0, grad(a))
    case("pow.Tensor_Tensor", a, b)
    case("pow.Tensor_Tensor", i, torch.tensor([2, 3]))
    case("pow.Tensor_Tensor", torch.tensor([1, -1, -1, 2, 0]), torch.tensor([-1, -2, -3, -1, -1]))
    case("pow.Tensor_Tensor", row, column)
    case("pow.Tensor_Tensor", a, torch.zeros(3))
    case("pow.Tensor_Tensor", grad(torch.tensor([0.5, 2.0, 0.0, 0.0, 3.0])), grad(torch.tensor([2.0, 0.0, 1.0, 2.0, -1.5])))
    case("pow.Tensor_Tensor", grad(torch.tensor([2.0, 3.0])), grad(torch.tensor([[2.0], [0.5]])))

    cube = torch.arange(24.0).reshape(2, 3, 4) / 7
    whole = torch.arange(24).reshape(2, 3, 4)
    for name, dims in (("sum", ".dim_IntList"), ("mean", ".dim")):
        for x in (a, i, flags, cube, whole, torch.tensor(2.5), torch.tensor(3), torch.zeros(0), torch.zeros(2, 0), a.half(), a.double(),
                  i.int(), i.to(torch.uint8) + 250, torch.full((2000,), 0.1, dtype=torch.float16)):  # fmt: skip
            case(name, x)
        for dtype in (torch.float64, torch.float32, torch.int64, torch.int32, torch.bool):
            case(name, a, dtype=dtype)
            case(name, i, dtype=dtype)
        for dim, keep in [([0], False), ([1], True), ([-1], False), ([0, 2], False), ([2, 0], True), ([0, 1, 2], False), ([], False), (None, True),
                          ([3], False), ([1, -2], False), ([-4], False)]:  # fmt: skip
            case(name + dims, cube, dim, keep)
            case(name + dims, whole, dim, keep)
            if dim is None or len(dim) < 3:
                case(name + dims, grad(cube), dim, keep)
        case(name + dims, cube, [0], dtype=torch.float64)
        case(name + dims, torch.tensor(2.0), [0])
        case(name + dims, torch.tensor(2.0), [-1], True)
        case(name + dims, torch.zeros(2, 0, 3), [1])
        case(name + dims, torch.zeros(2, 0, 3), [0])
        case(name + dims, torch.zeros(0, 3, dtype=torch.int64), [0])
        case(name + dims, torch.zeros(0, 3, dtype=torch.int64), [1])
        case(name, grad(a))
        case(name, grad(torch.tensor(2.0)))
        case(name, grad(a), dtype=torch.float64)
    case("sum", torch.tensor([2**63 - 1, 1]))

    def m(*shape, dtype=torch.float32):
        count = 1
        for size in shape:
            count *= size
        return ((torch.arange(count) % 11) - 5).reshape(shape).to(dtype)

    for x, y in [((2, 2), (2, 2)), ((2, 3), (3, 4)), ((3,), (3,)), ((2, 3), (3,)), ((3,), (3, 2)), ((5, 2, 3), (3,)), ((3,), (5, 3, 2)),
                 ((5, 2, 3), (3, 4)), ((2, 3), (5, 3, 4)), ((5, 2, 3), (5, 3, 4)), ((5, 1, 2, 3), (4, 3, 2)), ((2, 0), (0, 3)), ((0, 3), (3, 2)),
                 ((2, 3), (2, 3)), ((3,), (2,)), ((2, 2), (3,)), ((2, 2, 2), (3, 2, 2)), ((), (2, 2)), ((2,), ())]:  # fmt: skip
        for dtype in FLOATS + [torch.int64]:
            case("matmul", m(*x, dtype=dtype), m(*y, dtype=dtype))
        if 0 not in x:
            case("matmul", grad(m(*x)), grad(m(*y) + 0.5))
    case("matmul", m(2, 3).half(), m(3, 2).half())
    case("matmul", m(2, 3).bfloat16(), m(3, 2).bfloat16())
    case("matmul", m(2, 3, dtype=torch.uint8), m(3, 2, dtype=torch.uint8))
    case("matmul", m(2, 3), m(3, 2, dtype=torch.int64))
    case("matmul", m(2, 3), m(3, 2, dtype=torch.float64))
    case("mm", m(2, 3), m(3, 2))
    case("mm", m(2, 3), m(2, 3))
    case("mm", m(2, 3), m(3))
    case("mm", m(3), m(3, 2))
    case("mm", m(2, 3, dtype=torch.int32), m(3, 2, dtype=torch.int32))
    case("mm", grad(m(2, 3)), grad(m(3, 2)))
    case("bmm", m(2, 2, 3), m(2, 3, 4))
    case("bmm", m(2, 2, 3), m(2, 2, 3))
    case("bmm", m(2, 2, 3), m(1, 3, 2))
    case("bmm", m(2, 2, 3), m(3, 2))
    case("bmm", grad(m(2, 2, 3)), grad(m(2, 3, 4)))
    case("linear", m(5, 3), m(2, 3), m(2))
    case("linear", m(5, 3), m(2, 3))
    case("linear", m(4, 5, 3), m(2, 3), m(2))
    case("linear", m(3), m(2, 3), m(2))
    case("linear", m(5, 3), m(2, 4), m(2))
    case("linear", m(5, 3), m(2, 3), m(3))
    case("linear", grad(m(5, 3)), grad(m(2, 3)), grad(m(2)))
    case("linear", grad(m(4, 5, 3)), grad(m(2, 3)), grad(m(2)))

    case("t", a)
    case("t", m(2, 3))
    case("t", m(3))
    case("t", torch.tensor(1))
    case("t", m(1, 2, 3))
    case("t", grad(m(2, 3)))
    case("transpose.int", cube, 0, 2)
    case("transpose.int", cube, -1, -2)
    case("transpose.int", cube, 0, 3)
    case("transpose.int", torch.tensor(1.0), 0, -1)
    case("transpose.int", whole, 1, 0)
    case("transpose.int", grad(cube), 0, 1)
    case("permute", cube, [2, 0, 1])
    case("permute", cube, [2, 0])
    case("permute", cube, [0, 0, 1])
    case("permute", grad(cube), [-1, 0, 1])
    for size in ([4], [-1], [2, -1], [1, 2, 2, 1], [3], [-1, 3], [-1, -1], [-2, 2], []):
        case("reshape", a, size)
    case("reshape", torch.tensor(2.0), [])
    case("reshape", torch.tensor(2.0), [1, -1])
    case("reshape", torch.zeros(0, 3), [-1, 0])
    case("reshape", torch.zeros(0, 3), [3, -1])
    case("reshape", torch.zeros(0, 3), [2, 0])
    case("reshape", grad(cube), [4, -1])
    case("view", a, [4, 1])
    case("view", a, [3])
    case("flatten.using_ints", cube)
    case("flatten.using_ints", cube, 1)
    case("flatten.using_ints", cube, 0, 1)
    case("flatten.using_ints", cube, 2, 1)
    case("flatten.using_ints", torch.tensor(1.0))
    case("squeeze", m(1, 2, 1))
    case("squeeze.dim", m(1, 2, 1), 0)
    case("squeeze.dim", m(1, 2, 1), 1)
    case("squeeze.dim", m(1, 2, 1), 3)
    case("unsqueeze", a, 0)
    case("unsqueeze", a, -1)
    case("unsqueeze", a, 3)
    case("unsqueeze", torch.tensor(1.0), 0)
    case("clone", a)
    case("clone", i)
    case("clone", flags)
    case("clone", grad(a))
    case("detach", a)
    case("detach", grad(a))
    for dim in (0, 1, -1, 2):
        case("cat", [a, b], dim)
        case("stack", [a, b], dim)
    case("cat", [a, i])
    case("cat", [a, b.double(), i])
    case("cat", [a, torch.zeros(0)], 1)
    case("cat", [torch.zeros(0), torch.zeros(0)])
    case("cat", [torch.zeros(2, 0), a], 1)
    case("cat", [torch.zeros(2, 0), torch.zeros(2, 0)], 1)
    case("cat", [a, torch.zeros(3, 3)])
    case("cat", [a, row])
    case("cat", [torch.tensor(1.0)])
    case("cat", [a, a, a])
    case("cat", [grad(a), grad(b)], 1)
    case("cat", [grad(a), i])
    case("stack", [a, i])
    case("stack", [a, torch.zeros(3)])
    case("stack", [torch.tensor(1.0), torch.tensor(2.0)])
    case("stack", [torch.zeros(2, 0), torch.zeros(2, 0)])
    case("stack", [grad(a), grad(b)], 1)

    cpu = torch.device("cpu")
    for name in ("zeros", "ones"):
        for size in ([2, 3], [4], [2, 0], [], [-2]):
            case(name, size)
        for dtype in FLOATS + HALVES + INTS + [torch.bool]:
            case(name, [2], dtype=dtype)
        case(name, [2], device=cpu)
        case(name + "_like", a)
        case(name + "_like", i)
        case(name + "_like", flags)
        case(name + "_like", a, dtype=torch.int64, device=cpu)
        case(name + "_like", grad(a))
    for value, dtype in [(1.5, None), (3, None), (1.5, torch.float64), (2, torch.float32), (3.7, torch.int64), (-3.7, torch.int32), (INF, torch.int64),
                         (-1, torch.uint8), (300, torch.uint8), (-300, torch.uint8), (2**40, torch.int32), (INF, torch.float32), (NAN, torch.float64), (NAN, torch.int64),
                         (1e300, torch.float32), (70000.0, torch.float16), (70000.0, torch.bfloat16), (True, torch.int64), (2**53 + 1, torch.int64), (40000, torch.int16)]:  # fmt: skip
        case("full", [2, 2], value, dtype=dtype)
    case("full_like", a, 2)
    case("full_like", i, 2)
    case("full_like", i, 2.5)
    for name in ("softmax.int", "log_softmax.int"):
        for dim in (0, 1, -1, 2):
            case(name, a, dim)
        case(name, a * 100, 1)
        case(name, a.half(), 1)
        case(name, torch.tensor(2.0), 0)
        case(name, a, 1, torch.float64)
        case(name, grad(cube), 1)
        case(name, grad(cube), 2)
    for alias in ("subtract", "multiply", "divide", "true_divide"):
        case(alias + ".Tensor", a, b)
        case(alias + ".Scalar", a, 2)
    case("negative", a)
    case("concat", [a, b])


def at_random(count):
    """Shapes that do and do not fit, all types, some gradients."""

    def shape():
        return [random.choice([1, 1, 2, 3, 3, 0]) if random.random() < 0.9 else 4 for _ in range(random.randrange(4))]

    def tensor(size, halves):
        dtype = random.choice((HALVES if halves else FLOATS) + FLOATS + INTS + [torch.bool])
        x = torch.randint(-20, 20, size)
        if dtype.is_floating_point:
            x = (x / 8).to(dtype)
            # PyTorch rounds gradients of halves on the way, so they tell little.
            return x.requires_grad_() if not halves and random.random() < 0.5 else x
        return x.to(dtype)

    def number():
        return random.choice([random.randrange(-9, 9), random.randrange(-72, 72) / 8])

    for _ in range(count):
        name = random.choice(["add", "sub", "mul", "div", "pow", "matmul", "sum", "cat", "reshape"])
        halves = random.random() < 0.3
        x, y = tensor(shape(), halves), tensor(shape(), halves)
        if name == "matmul":
            dtype = random.choice(FLOATS + [torch.int64])
            case(name, x.detach().to(dtype), y.detach().to(dtype))
        elif name == "sum":
            rank = x.dim()
            dims = random.sample(range(-rank, rank), random.randrange(1 + min(rank, 2))) if rank else []
            case("sum.dim_IntList", x, dims, random.random() < 0.5)
        elif name == "cat":
            case("cat", random.choice([[x, y], [x, x], [x, y, x]]), random.randrange(-2, 2))
        elif name == "reshape":
            case("reshape", x, [random.choice([-1, 1, 2, 3, 6]) for _ in range(random.randrange(4))])
        elif name == "pow":
            # Powers of halves overflow, and then nothing can be compared.
            case("pow.Tensor_Scalar", x.detach().float(), random.choice([0, 1, 2, 3, -1, 0.5]))
        elif random.random() < 0.5:
            case(name + ".Tensor", x, y)
        else:
            case(name + ".Scalar", x, number())


if __name__ == "__main__":
    if len(sys.argv) > 1:
        random.seed(int(sys.argv[1]))
        torch.manual_seed(int(sys.argv[1]))
        at_random(int(sys.argv[2]))
    else:
        given()
