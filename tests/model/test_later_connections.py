"""The connections that came after the paper: each equation, written out plainly for one position at a time."""

import torch
import torch.nn.functional as F
from model_variants import STACKS, padded, scrambled, sentences, tiny_config
from pytest import fixture, mark, raises

from deepnmt.model.config import ModelConfig, StackConfig
from deepnmt.model.connections import CONNECTIONS, StackShape
from deepnmt.model.connections.attention_residual import AttentionResidualConfig
from deepnmt.model.connections.denseformer import DenseFormerConfig
from deepnmt.model.connections.dlcl import DlclConfig
from deepnmt.model.connections.dynamic_dense import DynamicDenseConfig
from deepnmt.model.connections.hyper import HyperConfig
from deepnmt.model.connections.manifold_hyper import ManifoldHyperConfig, sinkhorn
from deepnmt.model.connections.sparse_dlcl import SparseDlclConfig
from deepnmt.model.connections.transparent import TransparentConfig
from deepnmt.model.connections.transparent_dlcl import TransparentDlclConfig
from deepnmt.model.kernels.mixture import mix_by_position
from deepnmt.model.norms import inverse_rms
from deepnmt.model.transformer import Transformer

N, DIM, READERS = 5, 8, 2
POSITIONS = 3


def build(config, norm="pre", scramble=True):
    shape = StackShape(num_layers=N, dim=DIM, norm=norm, num_readers=READERS)
    torch.manual_seed(1)
    connection = CONNECTIONS[config.kind](config, shape).double().eval()
    if scramble:
        with torch.no_grad():
            for parameter in connection.parameters():
                parameter.add_(0.3 * torch.randn_like(parameter))
    return connection


@fixture
def y():
    torch.manual_seed(5)
    return [torch.randn(POSITIONS, DIM, dtype=torch.float64) for _ in range(N + 1)]


def run(connection, y):
    """x_1, ..., x_N and the memories, where the layers write y_1, ..., y_N whatever they read."""
    history, read = connection.begin(), []
    connection.write(history, y[0])
    for output in y[1:]:
        read.append(connection.read(history))
        connection.write(history, output)
    return read, connection.memories(history)


def ln(norm, x):
    return F.layer_norm(x, (DIM,), norm.weight, norm.bias, norm.eps)


def rms(x, eps=1e-6):
    return x / (x.square().mean() + eps).sqrt()


def assert_inputs(connection, y, expected):
    """expected(y of one position) -> x_1, ..., x_N, and the result"""
    read, memories = run(connection, y)
    for position in range(POSITIONS):
        wanted = expected([output[position] for output in y])
        for depth, (got, want) in enumerate(zip([*read, memories[0]], wanted, strict=True), start=1):
            torch.testing.assert_close(got[position], want, rtol=1e-6, atol=1e-6, msg=f"x{depth}")


@mark.parametrize(("dilation", "period"), [(1, 1), (2, 1), (1, 2), (2, 3)])
def test_denseformer(y, dilation, period):
    connection = build(DenseFormerConfig(dilation=dilation, period=period))

    def expected(y):
        inputs = [y[0]]
        for depth in range(1, N + 1):
            columns = range(depth, -1, -dilation) if depth % period == 0 else []
            inputs.append(sum(connection.weight[depth, k] * y[k] for k in columns) if columns else y[depth])
        return inputs

    assert_inputs(connection, y, expected)


@mark.parametrize("norm", ["pre", "post"])
def test_sparse_dlcl(y, norm):
    """Blocks of two: the layers 1 2, 3 4, and 5."""
    connection = build(SparseDlclConfig(block=2), norm)
    ends = [0, 2, 4, 5]

    def expected(y):
        inputs = []
        for depth in range(N + 1):
            if depth not in ends:
                inputs.append(y[depth])
                continue
            row, weights = ends.index(depth), connection.weight[ends.index(depth)]
            seen = [y[end] for end in ends[: row + 1]]
            if norm == "pre":
                seen = [seen[0], *(ln(connection.norms[k], seen[k]) for k in range(1, row + 1))]
            mixed = sum(weights[k] * seen[k] for k in range(row + 1))
            inputs.append(ln(connection.norms[row], mixed) if norm == "post" and row else mixed)
        return inputs

    assert_inputs(connection, y, expected)
    matrix = connection.matrix()
    assert matrix.shape == (N + 1, N + 1)
    assert matrix[3].tolist() == [0, 0, 0, 1, 0, 0], "inside a block the stack is residual"
    torch.testing.assert_close(
        matrix[4][[0, 2, 4]].double(), connection.weight[2, :3, 0].detach(), rtol=1e-6, atol=1e-6
    )
    assert build(SparseDlclConfig(block=2), scramble=False).matrix()[5, [0, 2, 4, 5]].tolist() == [0.25] * 4


def test_one_block_is_every_layer(y):
    """Blocks of one layer are DLCL."""
    sparse, dlcl = build(SparseDlclConfig(block=1)), build(DlclConfig())
    dlcl.load_state_dict(sparse.state_dict())
    for ours, theirs in zip(run(sparse, y)[0], run(dlcl, y)[0], strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0)


@mark.parametrize("norm", ["pre", "post"])
def test_transparent_dlcl(y, norm):
    connection = build(TransparentDlclConfig(), norm)
    weight = connection.weight

    def expected(y, reader):
        if norm == "pre":
            y = [y[0], *(ln(connection.norms[k], y[k]) for k in range(1, N + 1))]
        rows = [sum(weight[row, k] * y[k] for k in range(row + 1)) for row in range(N)]
        rows.append(sum(weight[N + reader, k] * y[k] for k in range(N + 1)))
        return rows if norm == "pre" else [rows[0], *(ln(connection.norms[row], rows[row]) for row in range(1, N + 1))]

    read, memories = run(connection, y)
    assert len(memories) == READERS
    for reader, memory in enumerate(memories):
        for position in range(POSITIONS):
            wanted = expected([output[position] for output in y], reader)
            for got, want in zip([*read, memory], wanted, strict=True):
                torch.testing.assert_close(got[position], want, rtol=1e-6, atol=1e-6)
    start = build(TransparentDlclConfig(), scramble=False).matrix()[N:]
    torch.testing.assert_close(start, torch.full((READERS, N + 1), 1 / (N + 1)))


def test_transparent_dlcl_holds_both_of_its_parents(y):
    connection, dlcl = build(TransparentDlclConfig(), scramble=False), build(DlclConfig(), scramble=False)
    inputs, (first, second) = run(dlcl, y)[0], run(connection, y)[1]
    torch.testing.assert_close(run(connection, y)[0], inputs)
    torch.testing.assert_close(first, second)
    torch.testing.assert_close(first, run(dlcl, y)[1][0])
    transparent = build(TransparentConfig())
    with torch.no_grad():
        connection.weight[:N] = torch.eye(N, N + 1)
        connection.weight[N:] = transparent.weight.softmax(0).T
    connection.norms = torch.nn.ModuleList(torch.nn.Identity() for _ in range(N + 1))
    for ours, theirs in zip(run(connection, y)[1], run(transparent, y)[1], strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-6)


def dynamic_rows(connection, z, rows=range(1, N + 1), dilation=1):
    """sum_k (a[l,k] + (U_l gelu(V_l rms(z_l)))_k) z_k for l = 1, 2, ...; z_l where l is not among the rows."""
    parameters = zip(rows, connection.weight[1:], connection.inner, connection.outer, strict=True)
    found = dict(enumerate(z))
    for row, weight, inner, outer in parameters:
        columns = range(row % dilation, row + 1, dilation)
        assert inner.shape == (len(columns) + 1, DIM) and outer.shape == (len(columns), len(columns) + 1)
        dynamic = outer @ F.gelu(inner @ rms(z[row]))
        found[row] = sum((weight[k] + dynamic[i]) * z[k] for i, k in enumerate(columns))
    return [found[row] for row in range(1, N + 1)]


@mark.parametrize(
    ("dilation", "period", "rows"),
    [(1, 1, [1, 2, 3, 4, 5]), (2, 1, [1, 2, 3, 4, 5]), (1, 3, [3, 5]), (3, 2, [2, 4, 5]), (1, 5, [5]), (1, 9, [5])],
)
def test_dynamic_dense(y, dilation, period, rows):
    """The result is a mixture, whether or not the period divides the depth."""
    connection = build(DynamicDenseConfig(dilation=dilation, period=period))
    assert_inputs(connection, y, lambda y: [y[0], *dynamic_rows(connection, y, rows, dilation)])
    matrix = connection.matrix()
    for row in range(N + 1):
        if row in rows:
            columns = torch.arange(row % dilation, row + 1, dilation)
            expected = connection.weight[1 + rows.index(row), columns].detach().float()
            torch.testing.assert_close(matrix[row], torch.zeros(N + 1).index_put((columns,), expected))
        elif row:
            assert matrix[row].tolist() == [float(k == row) for k in range(N + 1)]


def test_dynamic_dense_keeps_only_what_a_row_reads(y):
    """Rows 2, 4 and 5 with dilation 2 read y_0, y_2, y_4 and y_1, y_3, y_5; with dilation 4: 2; 0, 4; 1, 5."""
    for dilation, period, kept in ((2, 2, [0, 1, 2, 3, 4, 5]), (4, 2, [0, 1, 2, 4, 5]), (5, 5, [0, 5])):
        connection = build(DynamicDenseConfig(dilation=dilation, period=period))
        history = connection.begin()
        for output in y:
            connection.write(history, output)
            connection.read(history)
        held = {id(output) for _, outputs in history.groups for output in outputs}
        assert [depth for depth, output in enumerate(y) if id(output) in held] == kept


def test_rows_that_do_not_mix_have_no_parameters_and_draw_nothing():
    full, periodic = (build(DynamicDenseConfig(period=period), scramble=False) for period in (1, 3))
    assert [tuple(inner.shape) for inner in full.inner] == [(row + 2, DIM) for row in range(1, N + 1)]
    assert [tuple(outer.shape) for outer in periodic.outer] == [(4, 5), (6, 7)]
    assert periodic.weight.shape == (3, N + 1) and full.weight.shape == (N + 1, N + 1)
    assert periodic.matrix().tolist() == full.matrix().tolist() == torch.eye(N + 1).tolist()
    assert full.state_dict().keys() > periodic.state_dict().keys()


@mark.parametrize("norm", ["pre", "post"])
def test_dynamic_dlcl(y, norm):
    connection = build(CONNECTIONS["dynamic-dlcl"].Config(), norm)

    def expected(y):
        z = [y[0], *(ln(connection.norms[k], y[k]) for k in range(1, N + 1))] if norm == "pre" else y
        rows = [connection.weight[0, 0] * z[0], *dynamic_rows(connection, z)]
        return rows if norm == "pre" else [rows[0], *(ln(connection.norms[row], rows[row]) for row in range(1, N + 1))]

    assert_inputs(connection, y, expected)


@mark.parametrize("norm", ["pre", "post"])
def test_dynamic_dlcl_starts_as_dlcl_and_holds_it(y, norm):
    connection, dlcl = (build(CONNECTIONS[kind].Config(), norm, scramble=False) for kind in ("dynamic-dlcl", "dlcl"))
    assert not any(outer.any() for outer in connection.outer)
    for trained in (False, True):
        if trained:
            torch.manual_seed(2)
            with torch.no_grad():
                dlcl.weight += torch.randn_like(dlcl.weight)
                connection.weight.copy_(dlcl.weight[..., 0])
        for ours, theirs in zip(run(connection, y)[0], run(dlcl, y)[0], strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-6)


@mark.parametrize(("blocks", "size"), [(None, 1), (2, 3), (3, 2), (1, 5)])
def test_attention_residual(y, blocks, size):
    connection = build(AttentionResidualConfig(blocks=blocks))

    def expected(y):
        branches, inputs = [y[0]], [y[0]]
        for depth in range(1, N + 1):
            branches.append(y[depth] - inputs[-1])
            done = branches[1:]
            sources = [y[0], *(sum(done[i : i + size]) for i in range(0, depth, size))]
            scores = [
                connection.query[depth - 1] @ rms(source) + connection.bias[depth - 1, i]
                for i, source in enumerate(sources)
            ]
            shares = torch.stack(scores).softmax(0)
            inputs.append(sum(share * source for share, source in zip(shares, sources, strict=True)))
        return inputs

    assert_inputs(connection, y, expected)
    matrix = build(AttentionResidualConfig(blocks=blocks), scramble=False).matrix()
    sources = 1 + -(-N // size)
    torch.testing.assert_close(matrix[-1], torch.full((N + 1,), 1 / sources))


@mark.parametrize("dynamic", [True, False])
def test_hyper_connections(y, dynamic):
    n = 3
    connection = build(HyperConfig(streams=n, dynamic=dynamic))

    def expected(y):
        streams, inputs = torch.stack([y[0]] * n), []
        for layer in range(N):
            weights = connection.weight[layer]
            read, write, carry = weights[:, 0].clone(), weights[:, 1].clone(), weights[:, 2:].clone()
            if dynamic:
                normed = torch.stack([rms(stream) for stream in streams])
                found = (normed @ connection.projection[layer].T).tanh()
                scale, write_scale = connection.scale[layer]
                read, write = read + scale * found[:, 0], write + write_scale * found[:, 1]
                carry = carry + scale * found[:, 2:]
            x = read @ streams
            inputs.append(x)
            streams = carry.T @ streams + torch.outer(write, y[layer + 1] - x)
        return [*inputs, streams.sum(0)]

    assert_inputs(connection, y, expected)


def test_hyper_connections_start_as_the_authors_do():
    connection = build(HyperConfig(), scramble=False)
    for layer in range(N):
        read, write, carry = connection.weight[layer].split([1, 1, 4], 1)
        assert read[:, 0].tolist() == [float(stream == layer % 4) for stream in range(4)]
        assert (write == 1).all() and torch.equal(carry, torch.eye(4).double())
    assert not connection.projection.any() and torch.allclose(connection.scale, torch.tensor(0.01).double())


def test_manifold_hyper_connections(y):
    n = 3
    connection = build(ManifoldHyperConfig(streams=n))

    def expected(y):
        streams, inputs = torch.stack([y[0]] * n), []
        for layer in range(N):
            projection = connection.projection[layer].permute(1, 0, 2).flatten(1)  # (2n + n^2, n * dim)
            dynamic = projection @ rms(streams.flatten())
            parts = zip(connection.bias[layer].split([n, n, n * n]), dynamic.split([n, n, n * n]), strict=True)
            logits = [bias + scale * part for (bias, part), scale in zip(parts, connection.scale[layer], strict=True)]
            mixing = logits[2].reshape(n, n).exp()
            for _ in range(20):
                mixing = mixing / mixing.sum(0, keepdim=True)
                mixing = mixing / mixing.sum(1, keepdim=True)
            x = logits[0].sigmoid() @ streams
            inputs.append(x)
            streams = mixing @ streams + torch.outer(2 * logits[1].sigmoid(), y[layer + 1] - x)
        return [*inputs, streams.sum(0)]

    assert_inputs(connection, y, expected)


def test_weights_of_positions_and_outputs_have_the_gradients_of_the_sum():
    torch.manual_seed(3)
    outputs = [torch.randn(2, 3, 4, dtype=torch.float64, requires_grad=True) for _ in range(3)]
    weights = torch.randn(2, 3, 3, dtype=torch.float64, requires_grad=True)
    expected = sum(weights[..., k : k + 1] * outputs[k] for k in range(3))
    torch.testing.assert_close(mix_by_position(outputs, weights), expected)
    assert torch.autograd.gradcheck(lambda weights, *outputs: mix_by_position(outputs, weights), (weights, *outputs))


def test_inverse_rms_and_its_gradient():
    torch.manual_seed(4)
    x = torch.randn(2, 3, 4, dtype=torch.float64, requires_grad=True)
    torch.testing.assert_close(x * inverse_rms(x), torch.stack([rms(row) for row in x.view(6, 4)]).view_as(x))
    assert torch.autograd.gradcheck(inverse_rms, x)
    half = x.detach().bfloat16().requires_grad_()
    found = inverse_rms(half)
    (gradient,) = torch.autograd.grad(found.sum(), half)
    (exact,) = torch.autograd.grad(inverse_rms(wide := half.detach().double().requires_grad_()).sum(), wide)
    assert found.dtype is torch.float32 and gradient.dtype is torch.bfloat16
    torch.testing.assert_close(gradient.double(), exact, rtol=2**-8, atol=0)


@mark.parametrize("config", [HyperConfig(dynamic=False), HyperConfig(), ManifoldHyperConfig()], ids=str)
def test_the_weights_of_streams_are_not_rounded_to_half_precision(config):
    connection = build(config).float()
    streams = torch.randn(config.streams, POSITIONS, DIM, dtype=torch.bfloat16)
    with torch.autocast("cpu", torch.bfloat16):
        weights = connection.weights_of(1, streams)
    assert {weights.read.dtype, weights.write.dtype, weights.carry.dtype} == {torch.float32}


def test_sinkhorn_is_doubly_stochastic():
    torch.manual_seed(0)
    found = sinkhorn(torch.randn(7, 4, 4, dtype=torch.float64))
    assert (found > 0).all()
    torch.testing.assert_close(found.sum(-1), torch.ones(7, 4, dtype=torch.float64))
    torch.testing.assert_close(found.sum(-2), torch.ones(7, 4, dtype=torch.float64), rtol=1e-4, atol=1e-4)


RESIDUAL_AT_FIRST = {"denseformer": 1e-6, "dynamic-dense": 1e-6, "hyper": 1e-6, "manifold-hyper": 1e-2}


@mark.parametrize("stack", STACKS)
@mark.parametrize("kind", RESIDUAL_AT_FIRST)
def test_at_the_start_the_stack_is_residual(kind, stack):
    """Under the norm on top, which does not see that hyper-connections add up four streams."""
    plain = scrambled(tiny_config())
    twin = Transformer(tiny_config(**{stack: CONNECTIONS[kind].Config()})).double().eval()
    ours = dict(plain.named_parameters())
    with torch.no_grad():
        for name, parameter in twin.named_parameters():
            if ".connection." not in name:
                parameter.copy_(ours[name])
    source, target = padded(sentences(6, 4)), padded(sentences(5, 3, seed=2))
    tolerance = RESIDUAL_AT_FIRST[kind]
    torch.testing.assert_close(twin(source, target), plain(source, target), rtol=tolerance, atol=5 * tolerance)


@mark.parametrize("kind", ["hyper", "manifold-hyper"])
def test_the_picture_of_streams_is_their_static_part(y, kind):
    """x and the result as sums of branches, with the weights of `matrix`."""
    connection = build(CONNECTIONS[kind].Config())
    with torch.no_grad():
        connection.projection.zero_()
    read, (result,) = run(connection, y)
    matrix = connection.matrix().double()
    branches = [y[0], *(output - x for output, x in zip(y[1:], read, strict=True))]
    for row, x in enumerate([*read, result]):
        expected = sum(weight * branch for weight, branch in zip(matrix[row], branches, strict=True))
        torch.testing.assert_close(x, expected, rtol=1e-5, atol=1e-5)


BRANCHED = [kind for kind, scheme in CONNECTIONS.items() if scheme.needs_branches]


@mark.parametrize("kind", BRANCHED)
def test_schemes_of_branches_refuse_post_norm(kind):
    stack = StackConfig(num_layers=2, dim=8, ffn_dim=8, num_heads=1, connection=CONNECTIONS[kind].Config())
    message = f"encoder.connection.kind = {kind} needs layers that add to their input, which sub-layers of kind post"
    with raises(ValueError, match=message):
        ModelConfig(source_vocab_size=9, target_vocab_size=9, norm="post", encoder=stack)


@mark.parametrize(
    ("config", "options", "message"),
    [
        (DenseFormerConfig, {"dilation": 0}, r"connection\.dilation = 0 must be at least 1"),
        (DenseFormerConfig, {"period": -1}, r"connection\.period = -1 must be at least 1"),
        (DynamicDenseConfig, {"dilation": 0}, r"connection\.dilation = 0 must be at least 1"),
        (DynamicDenseConfig, {"period": 0}, r"connection\.period = 0 must be at least 1"),
        (SparseDlclConfig, {"block": 0}, r"connection\.block = 0 must be at least 1"),
        (AttentionResidualConfig, {"blocks": 0}, r"connection\.blocks = 0 must be at least 1"),
        (HyperConfig, {"streams": 1}, r"connection\.streams = 1 must be at least 2"),
        (ManifoldHyperConfig, {"streams": 0}, r"connection\.streams = 0 must be at least 2"),
    ],
)
def test_refusals_name_the_option_of_a_later_scheme(config, options, message):
    with raises(ValueError, match=message):
        config(**options)
