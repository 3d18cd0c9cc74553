"""What each connection scheme says it is."""

from dataclasses import replace

import torch
from model_variants import DIM, NORMS, STACKS, padded, scrambled, sentences, tiny_config
from pytest import mark, raises

from deepnmt.model.config import StackConfig
from deepnmt.model.connections import CONNECTIONS, StackShape
from deepnmt.model.connections.average import AverageConfig
from deepnmt.model.connections.dense import DenseConfig
from deepnmt.model.connections.dlcl import Dlcl, DlclConfig
from deepnmt.model.connections.fusion import FusionConfig
from deepnmt.model.connections.residual import ResidualConfig
from deepnmt.model.connections.transparent import TransparentConfig
from deepnmt.model.transformer import Transformer

SHAPE = StackShape(num_layers=3, dim=DIM, norm="pre", num_readers=2)


def outputs(count=4, dtype=torch.float32):
    torch.manual_seed(5)
    return [torch.randn(2, 5, DIM, dtype=dtype) for _ in range(count)]


def run(connection, written):
    """The history after these outputs, and what was read on the way."""
    history, read = connection.begin(), []
    for output in written:
        connection.write(history, output)
        read.append(connection.read(history))
    return history, read


def with_weights_of(model, config):
    """A model of another connection with the weights of `model`, as far as they exist."""
    twin = Transformer(config).to(torch.float64).eval()
    ours = dict(model.named_parameters())
    with torch.no_grad():
        for name, parameter in twin.named_parameters():
            if ".connection." not in name:
                parameter.copy_(ours[name])
    return twin


def assert_same(a, b):
    source, target = padded(sentences(6, 4)), padded(sentences(5, 3, seed=2))
    torch.testing.assert_close(a(source, target), b(source, target), rtol=1e-6, atol=1e-6)


@mark.parametrize("stack", STACKS)
@mark.parametrize("norm", NORMS)
class TestIdentities:
    def test_dlcl_with_identity_rows_is_the_residual_stack(self, norm, stack):
        residual = scrambled(tiny_config(norm=norm))
        dlcl = with_weights_of(residual, tiny_config(norm=norm, **{stack: DlclConfig(norm=False)}))
        weight = getattr(dlcl, stack).connection.weight
        with torch.no_grad():
            weight.copy_(torch.eye(len(weight)).unsqueeze(2))
        assert_same(dlcl, residual)
        with torch.no_grad():
            weight[1, 0] += 0.1
        with raises(AssertionError):
            assert_same(dlcl, residual)

    @mark.parametrize("options", [{}, {"softmax": True}, {"groups": 4}, {"learned": False}], ids=str)
    def test_dlcl_at_its_start_is_the_average(self, norm, stack, options):
        average = scrambled(tiny_config(norm=norm, **{stack: AverageConfig()}))
        assert_same(
            with_weights_of(average, tiny_config(norm=norm, **{stack: DlclConfig(norm=False, **options)})), average
        )

    def test_dlcl_with_weights_of_one_is_dense(self, norm, stack):
        dense = scrambled(tiny_config(norm=norm, **{stack: DenseConfig()}))
        assert_same(
            with_weights_of(dense, tiny_config(norm=norm, **{stack: DlclConfig(norm=False, start="one")})), dense
        )

    def test_dlcl_with_a_window_of_one_is_the_residual_stack(self, norm, stack):
        residual = scrambled(tiny_config(norm=norm))
        assert_same(
            with_weights_of(residual, tiny_config(norm=norm, **{stack: DlclConfig(norm=False, window=1)})), residual
        )

    def test_fusion_with_all_weight_on_the_last_output_is_the_residual_stack(self, norm, stack):
        residual = scrambled(tiny_config(norm=norm))
        fusion = with_weights_of(residual, tiny_config(norm=norm, **{stack: FusionConfig()}))
        weight = getattr(fusion, stack).connection.weight
        with torch.no_grad():
            weight.zero_()[-1] = 1
        assert_same(fusion, residual)


class TestDlcl:
    def test_pre_norm_normalises_each_output_and_mixes(self):
        connection = Dlcl(DlclConfig(), SHAPE)
        with torch.no_grad():
            connection.weight.copy_(torch.randn_like(connection.weight))
            for k in range(1, 4):
                connection.norms[k].weight.copy_(torch.randn(DIM))
                connection.norms[k].bias.copy_(torch.randn(DIM))
        y = outputs()
        _, read = run(connection, y)
        normed = [y[0], *(connection.norms[k](y[k]) for k in (1, 2, 3))]
        for row in range(4):
            expected = sum(connection.weight[row, k] * normed[k] for k in range(row + 1))
            torch.testing.assert_close(read[row], expected, rtol=1e-5, atol=1e-5)

    def test_post_norm_mixes_and_normalises_each_row_but_the_first(self):
        connection = Dlcl(DlclConfig(), StackShape(num_layers=3, dim=DIM, norm="post", num_readers=1))
        with torch.no_grad():
            connection.weight.copy_(torch.randn_like(connection.weight))
        y = outputs()
        _, read = run(connection, y)
        torch.testing.assert_close(read[0], connection.weight[0, 0] * y[0])
        for row in range(1, 4):
            mixed = sum(connection.weight[row, k] * y[k] for k in range(row + 1))
            torch.testing.assert_close(read[row], connection.norms[row](mixed), rtol=1e-5, atol=1e-5)

    def test_softmax_is_over_the_connected_part_of_a_row(self):
        connection = Dlcl(DlclConfig(norm=False, softmax=True, window=2), SHAPE)
        with torch.no_grad():
            connection.weight.copy_(torch.randn_like(connection.weight))
        y = outputs()
        _, read = run(connection, y)
        shares = connection.weight[3, 2:4, 0].softmax(0)
        torch.testing.assert_close(read[3], shares[0] * y[2] + shares[1] * y[3], rtol=1e-5, atol=1e-6)

    def test_dimension_i_has_the_weight_of_group_i_modulo_groups(self):
        connection = Dlcl(DlclConfig(norm=False, groups=4), SHAPE)
        with torch.no_grad():
            connection.weight.copy_(torch.randn_like(connection.weight))
        y = outputs()
        _, read = run(connection, y)
        for i in range(DIM):
            expected = sum(connection.weight[3, k, i % 4] * y[k][..., i] for k in range(4))
            torch.testing.assert_close(read[3][..., i], expected, rtol=1e-5, atol=1e-5)

    def test_weights_above_the_diagonal_and_outside_the_window_are_not_used(self):
        for window in (None, 2):
            connection = Dlcl(DlclConfig(window=window), SHAPE)
            before = run(connection, outputs())[1]
            with torch.no_grad():
                unused = ~connection.connected.expand_as(connection.weight)
                connection.weight[unused] = 100.0
            for a, b in zip(before, run(connection, outputs())[1], strict=True):
                torch.testing.assert_close(a, b, rtol=0, atol=0)
            assert not connection.matrix()[unused[..., 0]].any()

    def test_norm_of_the_embedding_is_applied_when_asked_for(self):
        connection = Dlcl(DlclConfig(norm_embedding=True), SHAPE)
        y = outputs(1)
        torch.testing.assert_close(run(connection, y)[1][0], torch.nn.functional.layer_norm(y[0], (DIM,)))

    def test_dropout_is_on_the_mixture_and_only_in_training(self):
        connection = Dlcl(DlclConfig(norm=False, dropout=0.5), SHAPE)
        mixed = run(connection, outputs())[1][3]
        assert 0.3 < (mixed == 0).float().mean() < 0.7
        assert (run(connection.eval(), outputs())[1][3] != 0).all()

    def test_fixed_weights_are_no_parameters_to_learn(self):
        assert not Dlcl(DlclConfig(learned=False), SHAPE).weight.requires_grad
        assert Dlcl(DlclConfig(), SHAPE).weight.requires_grad

    def test_two_passes_do_not_meet(self):
        """The history is local: a pass begun inside another changes nothing."""
        connection = Dlcl(DlclConfig(), SHAPE)
        expected = run(connection, outputs())[1]
        history = connection.begin()
        for output, wanted in zip(outputs(), expected, strict=True):
            connection.write(history, output)
            run(connection, [torch.ones_like(output)])
            torch.testing.assert_close(connection.read(history), wanted, rtol=0, atol=0)


class TestTransparent:
    def connection(self, dropout=0.0):
        connection = CONNECTIONS["transparent"](TransparentConfig(dropout=dropout), SHAPE)
        with torch.no_grad():
            connection.weight.copy_(torch.randn(4, 2))
        return connection

    def test_each_reader_sees_its_own_softmax_over_all_outputs_with_the_embedding(self):
        connection, y = self.connection(), outputs()
        history, read = run(connection, y)
        assert all(a is b for a, b in zip(read, y, strict=True)), "inside, the stack is residual"
        memories = connection.memories(history)
        assert len(memories) == SHAPE.num_readers
        for j, memory in enumerate(memories):
            shares = connection.weight[:, j].softmax(0)
            expected = sum(share * output for share, output in zip(shares, y, strict=True))
            torch.testing.assert_close(memory, expected, rtol=1e-5, atol=1e-6)

    def test_dropout_is_on_the_normalised_weights_in_training_only(self):
        connection, y = self.connection(dropout=0.5), outputs()
        history, _ = run(connection, y)
        torch.manual_seed(0)
        memories = connection.memories(history)
        torch.manual_seed(0)
        shares = torch.nn.functional.dropout(connection.weight.softmax(0), 0.5)
        assert (shares == 0).any()
        for j, memory in enumerate(memories):
            expected = sum(shares[k, j] * y[k] for k in range(4))
            torch.testing.assert_close(memory, expected, rtol=1e-5, atol=1e-6)
        connection.eval()
        assert torch.equal(connection.memories(history)[0], connection.memories(history)[0])

    @mark.parametrize("norm", NORMS)
    def test_decoder_layers_see_different_memories(self, norm):
        model = scrambled(tiny_config(norm=norm, encoder=TransparentConfig()))
        seen = []
        for layer in model.decoder.layers:
            layer.cross_attention.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[1]))
        source, target = padded(sentences(6, 4)), padded(sentences(5, 3, seed=2))
        encoded = model.encode(source)
        assert len(encoded.memories) == 2
        assert not torch.allclose(encoded.memories[0], encoded.memories[1])
        model.decode(target, encoded)
        for layer, memory, keys_values in zip(model.decoder.layers, encoded.memories, seen, strict=True):
            torch.testing.assert_close(keys_values.keys, layer.cross_attention.project(memory).keys)

    def test_rows_start_equal(self):
        assert torch.allclose(
            Transformer(tiny_config(encoder=TransparentConfig())).encoder.connection.matrix(), torch.tensor(1 / 4)
        )


class TestFusion:
    def test_one_learned_row_is_on_top_and_the_inside_is_residual(self):
        connection = CONNECTIONS["fusion"](FusionConfig(), SHAPE)
        with torch.no_grad():
            connection.weight.copy_(torch.randn(4, 1))
        y = outputs()
        history, read = run(connection, y)
        assert all(a is b for a, b in zip(read, y, strict=True))
        (memory,) = connection.memories(history)
        torch.testing.assert_close(memory, sum(connection.weight[k] * y[k] for k in range(4)), rtol=1e-5, atol=1e-6)


@mark.parametrize("kind", CONNECTIONS)
def test_matrix_has_a_column_for_each_output_and_exists_only_where_something_is_learned(kind):
    connection = Transformer(tiny_config(encoder=CONNECTIONS[kind].Config())).encoder.connection
    matrix = connection.matrix()
    if not list(connection.parameters()):
        assert matrix is None, "nothing is learned"
    if matrix is not None:
        assert matrix.dim() == 2
        assert matrix.shape[1] == 4
        assert matrix.isfinite().all()


class TestMixedPrecision:
    """Mixture weights that bf16 cannot tell from one must still count, in the mixture and in its gradient."""

    def weights(self, connection):
        with torch.no_grad():
            for name, parameter in connection.named_parameters():
                if name == "weight":
                    parameter.fill_(1 + 0.9 * 2**-8)  # bf16 rounds this to one
        return connection

    @mark.parametrize("kind", ["dlcl", "fusion"])
    def test_weights_are_not_rounded_to_half_precision(self, kind):
        config = DlclConfig(norm=False) if kind == "dlcl" else FusionConfig()
        connection = self.weights(CONNECTIONS[kind](config, SHAPE))
        y = [output.bfloat16().requires_grad_() for output in outputs()]
        with torch.autocast("cpu", torch.bfloat16):
            history, _ = run(connection, y)
            (memory,) = connection.memories(history)
        assert memory.dtype == torch.bfloat16
        exact = sum(output.double() for output in y)
        bias = ((memory.double() - exact) * exact.sign()).sum() / exact.abs().sum()
        assert abs(bias.item() - 0.9 * 2**-8) < 2**-11

        torch.manual_seed(6)
        gradient = torch.randn_like(memory)
        memory.backward(gradient)
        expected = torch.stack([(gradient.double() * output.double()).sum() for output in y])
        got = connection.weight.grad.reshape(-1, 4)[-1]
        assert connection.weight.grad.dtype == torch.float32
        torch.testing.assert_close(got.double(), expected.detach(), rtol=1e-4, atol=1e-4)
        to_first = (gradient.float() * (1 + 0.9 * 2**-8)).bfloat16()
        assert torch.equal(y[0].grad, to_first)
        assert not torch.equal(to_first, gradient)

    def test_transparent_shares_are_not_rounded(self):
        connection = CONNECTIONS["transparent"](TransparentConfig(dropout=0.0), SHAPE)
        with torch.no_grad():
            connection.weight.copy_(torch.randn(4, 2, generator=torch.Generator().manual_seed(1)))
        y = [output.bfloat16() for output in outputs()]
        with torch.autocast("cpu", torch.bfloat16):
            memory = connection.memories(run(connection, y)[0])[0]
        shares = connection.weight[:, 0].softmax(0).detach()

        def agreement(shares):
            expected = sum(share * output.float() for share, output in zip(shares, y, strict=True)).bfloat16()
            return (memory == expected).float().mean()

        assert agreement(shares) > 0.97
        assert agreement(shares.bfloat16().float()) < 0.9


def test_refusals_name_the_option():
    with raises(ValueError, match=r"connection\.groups = 5 does not divide dim = 16"):
        StackConfig(dim=16, num_heads=4, connection=DlclConfig(groups=5))
    for options, message in [
        ({"groups": 0}, r"connection\.groups = 0 must be at least 1"),
        ({"window": 0}, r"connection\.window = 0 must be at least 1"),
        ({"dropout": 1.0}, r"connection\.dropout = 1\.0 must be at least 0 and below 1"),
        ({"norm": False, "norm_embedding": True}, r"connection\.norm_embedding = true needs connection\.norm = true"),
    ]:
        with raises(ValueError, match=message):
            DlclConfig(**options)
    with raises(ValueError, match=r"connection\.dropout = -0\.1 must be at least 0 and below 1"):
        TransparentConfig(dropout=-0.1)


def test_a_stack_is_residual_unless_told():
    assert StackConfig().connection == ResidualConfig()


@mark.parametrize("kind", CONNECTIONS)
def test_shortcuts_are_what_lets_an_output_bypass_the_next_layer(kind):
    """What is below reaches the result of a stack whose two layers ignore their input, or it does not."""
    shape = StackShape(num_layers=2, dim=4, norm="pre", num_readers=2)
    connection = CONNECTIONS[kind](CONNECTIONS[kind].Config(), shape).eval()
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in connection.parameters():  # some schemes start as the residual stack
            parameter.add_(torch.randn_like(parameter))
    outputs = [torch.randn(2, 4, requires_grad=True) for _ in range(3)]
    history = connection.begin()
    for output in outputs:
        connection.write(history, output)
        connection.read(history)
    total = (torch.stack(connection.memories(history)) * torch.randn(2, 4)).sum()
    gradients = torch.autograd.grad(total, outputs[:2], allow_unused=True)
    assert any(gradient is not None and bool(gradient.any()) for gradient in gradients) == connection.has_shortcuts


@mark.parametrize("kind", CONNECTIONS)
def test_the_mixture_of_a_scheme_is_what_it_does(kind):
    connection = CONNECTIONS[kind](CONNECTIONS[kind].Config(), replace(SHAPE, num_readers=1))
    with torch.no_grad():
        for parameter in connection.parameters():
            parameter.add_(torch.randn_like(parameter))
    mixture, written = connection.mixture(), outputs()
    static = ("residual", "dense", "average", "fusion", "dlcl", "sparse-dlcl", "transparent-dlcl", "denseformer")
    assert (mixture is not None) == (kind in static)
    assert connection.is_mixture == (kind in static and kind != "transparent-dlcl")  # which has one for one reader
    if mixture is not None:
        history, read = run(connection, written)
        (result,) = connection.memories(history)
        for row, found in enumerate([*read[:-1], result]):
            expected = written[row]
            if mixture.matrix is not None:
                normed = [norm(output) for norm, output in zip(mixture.norms, written, strict=True)]
                weights = mixture.matrix[row, :, 0]
                expected = sum(weight * output for weight, output in zip(weights, normed, strict=True))
            torch.testing.assert_close(found, expected)


def test_a_coordinated_reader_sees_the_layer_of_its_depth():
    """He et al. 2018; of stacks that are not equally deep, the last readers meet the last layers."""
    outputs = [torch.full((1, 4), float(depth)) for depth in range(7)]
    for layers, readers, seen in ((6, 6, [1, 2, 3, 4, 5, 6]), (6, 3, [2, 4, 6]), (3, 6, [1, 1, 2, 2, 3, 3])):
        shape = StackShape(num_layers=layers, dim=4, norm="pre", num_readers=readers)
        connection = CONNECTIONS["coordinated"](CONNECTIONS["coordinated"].Config(), shape)
        history = connection.begin()
        for output in outputs[: layers + 1]:
            connection.write(history, output)
        assert [int(memory[0, 0]) for memory in connection.memories(history)] == seen
        assert connection.read(history) is outputs[layers]


@mark.parametrize(
    ("order", "layers", "steps"),
    [
        ("hierarchical", 6, [(1, 2), (3, 4, "a"), (5, 6, "a")]),
        ("hierarchical", 3, [(1, 2), (3, "a")]),
        ("iterative", 4, [(1, 2), (3, "a"), (4, "a")]),
        ("iterative", 1, [(1,)]),
    ],
)
def test_aggregation_is_its_equation(order, layers, steps):
    """Dou et al. 2018: AGG(x, y, z) = LN(FFN([x; y; z]) + x + y + z)."""
    torch.manual_seed(1)
    shape = StackShape(num_layers=layers, dim=4, norm="pre", num_readers=2)
    connection = CONNECTIONS["aggregated"](CONNECTIONS["aggregated"].Config(order=order), shape)
    outputs = [torch.randn(3, 4) for _ in range(layers + 1)]
    history = connection.begin()
    for output in outputs:
        connection.write(history, output)
    merged = None
    for node, step in zip(connection.nodes, steps, strict=True):
        given = [merged if part == "a" else outputs[part] for part in step]
        hidden = (torch.cat(given, -1) @ node.expand.weight.T + node.expand.bias).clamp(min=0)
        total = hidden @ node.contract.weight.T + node.contract.bias + torch.stack(given).sum(0)
        centred = total - total.mean(-1, keepdim=True)
        merged = centred / (centred.square().mean(-1, keepdim=True) + node.norm.eps).sqrt()
    (found,) = connection.memories(history)
    torch.testing.assert_close(found, merged)
