//! The list of mutants: a small change in the definition of each op, and in each kernel.

/// A change of one line, after which the suite must find a fault of the op.
pub struct Mutant {
    /// The op, by its name in graphs.
    pub op: &'static str,
    /// The file, from the root of the repository.
    pub file: &'static str,
    /// What is changed; it occurs once in the file.
    pub old: &'static str,
    /// What it becomes.
    pub new: &'static str,
}

const fn mutant(op: &'static str, file: &'static str, old: &'static str, new: &'static str) -> Mutant {
    Mutant { op, file, old, new }
}

/// Mutants by what they change. Those of one round are applied together, as cases of an op contain few others:
/// `gather` ends nearly all cases, `write` is in those of attention, and `route` in those of experts.
pub const ROUNDS: &[(&str, &[Mutant])] = &[
    (
        "definitions",
        &[
            mutant("embed", "crates/graph/src/ops/embed.rs", "row(id as usize)?", "row(id as usize / 2)?"),
            mutant(
                "splice",
                "crates/graph/src/ops/splice.rs",
                "*first_row as usize * width..",
                "*first_row as usize..",
            ),
            mutant(
                "norm",
                "crates/graph/src/ops/norm.rs",
                "root * weight) as f32",
                "root * weight * 1.0001) as f32",
            ),
            mutant("layer_norm", "crates/graph/src/ops/layer_norm.rs", "map_or(0.0,", "map_or(0.001,"),
            mutant("linear", "crates/graph/src/ops/linear.rs", "map_or(0.0,", "map_or(0.001,"),
            mutant(
                "experts",
                "crates/graph/src/ops/experts.rs",
                "sum + bias.map_or(0.0,",
                "sum + bias.map_or(0.01,",
            ),
            mutant(
                "reshape",
                "crates/graph/src/ops/reshape.rs",
                "x.to_vec()",
                "x.iter().rev().copied().collect()",
            ),
            mutant(
                "rope",
                "crates/graph/src/ops/rope.rs",
                "let own = [position as f32];",
                "let own = [(position + 1) as f32];",
            ),
            mutant(
                "rope",
                "crates/graph/src/ops/rope.rs",
                "|sum, product| sum + product",
                "|sum, product| sum - product",
            ),
            mutant(
                "temper",
                "crates/graph/src/ops/temper.rs",
                "(factor * f64::from(*x)) as f32",
                "(factor * f64::from(*x)) as f32 * 1.0001",
            ),
            mutant(
                "attend",
                "crates/graph/src/ops/attend.rs",
                "f64::from(rule.scale) *",
                "1.001 * f64::from(rule.scale) *",
            ),
            mutant(
                "attend_latent",
                "crates/graph/src/ops/attend_latent.rs",
                "latent[..value_size]",
                "latent[size - value_size..]",
            ),
            mutant(
                "linear_heads",
                "crates/graph/src/ops/linear_heads.rs",
                ".sum as f32",
                ".sum as f32 * 1.0001",
            ),
            mutant("concat", "crates/graph/src/ops/concat.rs", "[a, b].concat()", "[b, a].concat()"),
            mutant("short_conv", "crates/graph/src/ops/short_conv.rs", "+ bias) as f32", "- bias) as f32"),
            mutant(
                "ssm_scan",
                "crates/graph/src/ops/ssm_scan.rs",
                "(dt * f64::from(rule.a[head])).exp()",
                "(dt * f64::from(rule.a[heads - 1 - head])).exp()",
            ),
            mutant(
                "delta_rule",
                "crates/graph/src/ops/delta_rule.rs",
                "* f64::from(a[head])).exp()",
                "* 1.001 * f64::from(a[head])).exp()",
            ),
            mutant(
                "gate",
                "crates/graph/src/ops/gate.rs",
                "f64::from(up)) as f32",
                "f64::from(up)) as f32 * 1.0001",
            ),
            mutant(
                "gate_heads",
                "crates/graph/src/ops/gate_heads.rs",
                "(factor * f64::from(*x)) as f32",
                "(factor * f64::from(*x)) as f32 * 1.0001",
            ),
            mutant(
                "activate",
                "crates/graph/src/ops/activate.rs",
                "f64::from(x)) as f32",
                "f64::from(x)) as f32 * 1.0001",
            ),
            mutant(
                "select_keys",
                "crates/graph/src/ops/select_keys.rs",
                ".then(a.cmp(b))",
                ".then(b.cmp(a))",
            ),
            mutant(
                "match_rms",
                "crates/graph/src/ops/match_rms.rs",
                "if own < least { least } else { own }",
                "own",
            ),
            mutant(
                "sparsify",
                "crates/graph/src/ops/sparsify.rs",
                "if above < 0.0 { 0.0 } else",
                "if above < -1e-3 { 0.0 } else",
            ),
            mutant(
                "mix_heads",
                "crates/graph/src/ops/mix_heads.rs",
                "f64::from(*weight) *",
                "f64::from(*weight) * 1.0001 *",
            ),
            mutant("hadamard", "crates/graph/src/ops/hadamard.rs", "match (i & j)", "match (i | j)"),
            mutant(
                "shift_columns",
                "crates/graph/src/ops/shift_columns.rs",
                "f64::from(*shift)) as f32",
                "f64::from(*shift)) as f32 * 1.0001",
            ),
            mutant(
                "scale_columns",
                "crates/graph/src/ops/scale_columns.rs",
                "f64::from(*weight)) as f32",
                "f64::from(*weight)) as f32 * 1.0001",
            ),
            mutant(
                "xielu",
                "crates/graph/src/ops/xielu.rs",
                "xielu.of(f64::from(x)) as f32",
                "xielu.of(f64::from(x)) as f32 * 1.0001",
            ),
            mutant(
                "add",
                "crates/graph/src/ops/add.rs",
                "f64::from(a) + f64::from(b)",
                "f64::from(a) - f64::from(b)",
            ),
            mutant(
                "scale",
                "crates/graph/src/ops/scale.rs",
                "f64::from(factor)) as f32",
                "f64::from(factor) * 1.0001) as f32",
            ),
            mutant("clamp", "crates/graph/src/ops/clamp.rs", "x if x < low => low", "x if x < -1e9 => low"),
            mutant(
                "softcap",
                "crates/graph/src/ops/softcap.rs",
                ".tanh()) as f32",
                ".tanh() * 1.0001) as f32",
            ),
            mutant(
                "pool",
                "crates/graph/src/ops/pool.rs",
                "let count = rows.len() as f64;",
                "let count = rows.len() as f64 + 0.001;",
            ),
        ],
    ),
    (
        "definitions that other cases contain",
        &[
            mutant(
                "write",
                "crates/graph/src/state.rs",
                "let slot = tensor.slot(sequence, position);",
                "let slot = tensor.slot(sequence, position - position % 2);",
            ),
            mutant(
                "route",
                "crates/graph/src/ops/route.rs",
                "self.factor.map_or(1.0,",
                "self.factor.map_or(1.001,",
            ),
        ],
    ),
    (
        "the definition of gather",
        &[mutant(
            "gather",
            "crates/graph/src/ops/gather.rs",
            "&x[row * stride..(row + 1) * stride]",
            "&x[row / 2 * stride..(row / 2 + 1) * stride]",
        )],
    ),
    (
        "kernels of the CPU",
        &[
            mutant("embed", "crates/cpu/src/ops/embed.rs", "ids[row] as usize", "ids[row] as usize / 2"),
            mutant(
                "splice",
                "crates/cpu/src/ops/splice.rs",
                "*first_row as usize * stride..",
                "*first_row as usize..",
            ),
            mutant(
                "norm",
                "crates/cpu/src/ops/norm.rs",
                "*y = x * scale * weight;",
                "*y = x * scale * weight * 1.0001;",
            ),
            mutant(
                "layer_norm",
                "crates/cpu/src/ops/layer_norm.rs",
                "1.0 / (variance + epsilon)",
                "1.0001 / (variance + epsilon)",
            ),
            mutant(
                "linear",
                "crates/cpu/src/ops/linear.rs",
                "|(sum, bias)| *sum += bias",
                "|(sum, bias)| *sum += bias * 1.001",
            ),
            mutant(
                "experts",
                "crates/cpu/src/ops/experts.rs",
                "(index as u32, *weight)",
                "(index as u32, *weight * 1.001)",
            ),
            mutant(
                "rope",
                "crates/cpu/src/ops/rope.rs",
                "x.0 * cosine - x.1 * sine",
                "x.0 * cosine + x.1 * sine",
            ),
            mutant(
                "rope",
                "crates/cpu/src/ops/rotations.rs",
                "sum += position * frequency;",
                "sum -= position * frequency;",
            ),
            mutant(
                "temper",
                "crates/cpu/src/ops/temper.rs",
                "temperature.at(origins[row].position) as f32",
                "temperature.at(origins[row].position + 1) as f32",
            ),
            mutant(
                "attend",
                "crates/cpu/src/ops/attend_piece.rs",
                "*output = value / sum;",
                "*output = value / sum * 1.001;",
            ),
            mutant(
                "attend_latent",
                "crates/cpu/src/kernels/attend.rs",
                "keys.get(dim).map_or(0.0, |key| key[position])",
                "keys.get(dim).map_or(0.0, |key| key[position ^ 1])",
            ),
            mutant(
                "linear_heads",
                "crates/cpu/src/ops/linear_heads.rs",
                "(row * heads + head) * inputs",
                "(row * heads) * inputs",
            ),
            mutant("concat", "crates/cpu/src/ops/concat.rs", "to_b.copy_from_slice(b)", "to_b.fill(b[0])"),
            mutant("short_conv", "crates/cpu/src/ops/short_conv.rs", "*y += tap * x", "*y -= tap * x"),
            // The decay of the row before, for all but the first rows of a block.
            mutant(
                "ssm_scan",
                "crates/cpu/src/ops/ssm_scan.rs",
                "dt: dt[row * heads + head]",
                "dt: dt[row.saturating_sub(1) * heads + head]",
            ),
            mutant(
                "delta_rule",
                "crates/cpu/src/ops/delta_rule.rs",
                "*to = beta * (v - (even + odd))",
                "*to = beta * (v + (even + odd))",
            ),
            mutant(
                "gate",
                "crates/cpu/src/ops/gate.rs",
                "exponential::silu(gate) * up",
                "exponential::silu(gate) * up * 1.0001",
            ),
            mutant(
                "gate_heads",
                "crates/cpu/src/ops/gate_heads.rs",
                "*y = factor[0] * x",
                "*y = factor[0] * x * 1.0001",
            ),
            mutant(
                "activate",
                "crates/cpu/src/ops/activate.rs",
                "relu(x) * relu(x)",
                "relu(x) * relu(x) * 1.0001",
            ),
            mutant(
                "xielu",
                "crates/cpu/src/ops/xielu.rs",
                "exp_m1_of_negative(least) - x) * negative",
                "exp_m1_of_negative(least) - x) * negative * 1.001",
            ),
            mutant("add", "crates/cpu/src/ops/add.rs", "|a, b| a + b", "|a, b| a - b"),
            mutant(
                "select_keys",
                "crates/cpu/src/ops/select_keys.rs",
                "if product < 0.0 { 0.0 } else { product }",
                "product",
            ),
            mutant("match_rms", "crates/cpu/src/ops/match_rms.rs", "mean(like).sqrt()", "mean(like)"),
            mutant("sparsify", "crates/cpu/src/ops/sparsify.rs", "(x - mean) * (x - mean)", "x * x"),
            mutant("mix_heads", "crates/cpu/src/ops/mix_heads.rs", "*y += weight * x", "*y = weight * x"),
            mutant("shift_columns", "crates/cpu/src/ops/shift_columns.rs", "x - shift", "x + shift"),
            mutant(
                "scale_columns",
                "crates/cpu/src/ops/scale_columns.rs",
                "x * weight",
                "x * weight * 1.0001",
            ),
            mutant("scale", "crates/cpu/src/ops/scale.rs", "x * self.factor", "x * self.factor * 1.0001"),
            mutant("hadamard", "crates/cpu/src/ops/hadamard.rs", "*a - *b)", "*b - *a)"),
            mutant("clamp", "crates/cpu/src/ops/clamp.rs", "if x < low { low } else { x }", "x"),
            mutant(
                "softcap",
                "crates/cpu/src/ops/softcap.rs",
                "cap * exponential::tanh(x / cap)",
                "cap * exponential::tanh(x / cap) * 1.0001",
            ),
            mutant(
                "pool",
                "crates/cpu/src/ops/pool.rs",
                "let count = rows.len() as f64;",
                "let count = rows.len() as f64 + 0.001;",
            ),
        ],
    ),
    (
        "kernels of the CPU that other cases contain",
        &[
            mutant(
                "write",
                "crates/cpu/src/ops/write.rs",
                "start % BLOCK_POSITIONS)",
                "start % (BLOCK_POSITIONS / 2))",
            ),
            mutant(
                "route",
                "crates/cpu/src/ops/route.rs",
                "router.factor.unwrap_or(1.0)",
                "router.factor.unwrap_or(1.001)",
            ),
            mutant(
                "reshape",
                "crates/cpu/src/ops/reshape.rs",
                "y.copy_from_slice(x)",
                "y[1..].copy_from_slice(&x[1..])",
            ),
        ],
    ),
    (
        "the kernel of gather",
        &[mutant(
            "gather",
            "crates/cpu/src/ops/gather.rs",
            "row as usize * stride",
            "row as usize / 2 * stride",
        )],
    ),
    (
        "vectors",
        &[
            mutant(
                "linear",
                "crates/cpu/src/kernels/vector/floats.rs",
                "all[c][0] = isa.fmadd(lower, x, all[c][0]);",
                "all[c][0] = isa.fmadd(lower, lower, all[c][0]);",
            ),
            mutant(
                "attend",
                "crates/cpu/src/kernels/vector/attend.rs",
                "*sum = v.fmadd(query, keys, *sum);",
                "*sum = v.fmadd(keys, keys, *sum);",
            ),
            mutant("gate", "crates/cpu/src/kernels/exponential.rs", "0.499_999_934_517", "0.498_999_934_517"),
            mutant(
                "softcap",
                "crates/cpu/src/kernels/exponential.rs",
                "0.166_665_206_898",
                "0.165_665_206_898",
            ),
            mutant(
                "activate",
                "crates/cpu/src/kernels/exponential.rs",
                "0.755_285_135_437",
                "0.755_385_135_437",
            ),
        ],
    ),
    (
        "state that is not cleared",
        &[mutant("ssm_scan", "crates/cpu/src/carried.rs", "None => self.values[to].fill(0.0)", "None => {}")],
    ),
    (
        "portable twins",
        &[
            mutant(
                "linear",
                "crates/cpu/src/kernels/portable/packed.rs",
                "*sum += weight * x);",
                "*sum += weight * x * 1.0001);",
            ),
            mutant(
                "attend",
                "crates/cpu/src/kernels/portable/attend.rs",
                "*sum += weight * value;",
                "*sum += weight * value * 1.001;",
            ),
            mutant(
                "activate",
                "crates/cpu/src/ops/activate.rs",
                "exact(self.act, f64::from(x)) as f32",
                "exact(self.act, f64::from(x)) as f32 * 1.0001",
            ),
            mutant(
                "gate",
                "crates/cpu/src/ops/gate.rs",
                "f64::from(up)) as f32);",
                "f64::from(up)) as f32 * 1.0001);",
            ),
            mutant("softcap", "crates/cpu/src/ops/softcap.rs", ".tanh()) as f32", ".tanh() * 1.0001) as f32"),
            mutant(
                "xielu",
                "crates/cpu/src/ops/xielu.rs",
                "(x.min(epsilon).exp_m1() - x) * negative",
                "(x.min(epsilon).exp_m1() - x) * negative * 1.001",
            ),
        ],
    ),
];
