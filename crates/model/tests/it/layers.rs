//! Layers that differ: an invented architecture gives the numbers of a plain computation.

use girih_graph::{Key, OutputKind};
use girih_model::arch::{FactValue, Facts, Ffn, Mixer, NormKind, NormPosition, QkNorm, QkNormFacts, schema};
use girih_model::{ModelFiles, ModelLimits, ModelShape};
use girih_tensor::DType;
use serde_json::json;

use crate::folder::empty_folder;
use crate::layered::{self, LAYERS, LayerSizes, VOCABULARY, WIDTH};
use crate::light::all_logits;

/// The largest difference from the plain computation: about 60 roundings of 2⁻²⁴ on the way of a value, of
/// which norms keep the size near 1, times at most 10 for what attention and FFN amplify.
const CLOSE: f64 = 60.0 * 10.0 / (1 << 24) as f64;

/// Opens the model in a folder of this test's own.
fn open(test: &str) -> ModelFiles {
    let folder = empty_folder(&format!("layered-{test}"));
    layered::write(&folder);
    ModelFiles::open(&folder, vec![layered::architecture()], &ModelLimits::DEFAULT).unwrap()
}

/// The model, computed in double precision by the formulas of its layers, without facts or graphs.
struct Plain<'a>(&'a ModelFiles);

impl Plain<'_> {
    fn weight(&self, name: &str) -> Vec<f64> {
        self.0.weights.numbers(name).unwrap().into_iter().map(f64::from).collect()
    }

    fn linear(&self, name: &str, x: &[f64]) -> Vec<f64> {
        let weight = self.weight(&format!("{name}.weight"));
        weight.chunks(x.len()).map(|row| row.iter().zip(x).map(|(w, x)| w * x).sum()).collect()
    }

    fn rms(&self, name: &str, x: &[f64]) -> Vec<f64> {
        self.rms_with(name, x, 1e-5)
    }

    fn rms_with(&self, name: &str, x: &[f64], epsilon: f64) -> Vec<f64> {
        self.weight(name).iter().zip(Self::divided_by_rms(x, epsilon)).map(|(w, x)| w * x).collect()
    }

    fn divided_by_rms(x: &[f64], epsilon: f64) -> Vec<f64> {
        let mean = x.iter().map(|x| x * x).sum::<f64>() / x.len() as f64;
        x.iter().map(|x| x / (mean + epsilon).sqrt()).collect()
    }

    fn layer_norm(&self, name: &str, x: &[f64]) -> Vec<f64> {
        let mean = x.iter().sum::<f64>() / x.len() as f64;
        let variance = x.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / x.len() as f64;
        let (weight, bias) = (self.weight(name), self.weight(&format!("{name}.bias")));
        let normed = x.iter().map(|x| (x - mean) / (variance + 1e-3).sqrt());
        normed.zip(weight.iter().zip(&bias)).map(|(x, (w, b))| w * x + b).collect()
    }

    fn rotated(base: f64, is_neighbours: bool, position: usize, head: &[f64]) -> Vec<f64> {
        let half = head.len() / 2;
        let mut out = head.to_vec();
        for i in 0..half {
            let angle = position as f64 * base.powf(-((2 * i) as f64) / head.len() as f64);
            let (a, b) = if is_neighbours { (2 * i, 2 * i + 1) } else { (i, i + half) };
            out[a] = head[a] * angle.cos() - head[b] * angle.sin();
            out[b] = head[a] * angle.sin() + head[b] * angle.cos();
        }
        out
    }

    fn attention(&self, at: &str, layer: LayerSizes, rows: &[Vec<f64>]) -> Vec<Vec<f64>> {
        let LayerSizes { kind, heads, kv_heads, head_size: size, .. } = layer;
        let is_near = kind == "near";
        let of_heads = |part: &str, position: usize, x: &[f64]| -> Vec<Vec<f64>> {
            let mut flat = self.linear(&format!("{at}.{part}"), x);
            if is_near && part == "q" {
                flat.iter_mut().zip(self.weight(&format!("{at}.q.bias"))).for_each(|(x, bias)| *x += bias);
            }
            if part == "v" {
                return flat.chunks(size).map(<[f64]>::to_vec).collect();
            }
            let norm = format!("{at}.{part}.norm");
            let head = |head: &[f64]| match kind {
                "near" => Self::rotated(100.0, true, position, &self.rms(&norm, head)),
                "far" => Self::rotated(1000.0, false, position, head),
                _ => Self::divided_by_rms(&Self::rotated(1000.0, false, position, head), 1e-5),
            };
            if kind == "far" {
                flat = self.rms_with(&norm, &flat, 1e-3);
            }
            flat.chunks(size).map(head).collect()
        };
        let scale = if kind == "wide" { 1.5 / 5.0 } else { 1.0 / (size as f64).sqrt() };
        let window = if is_near { 3 } else { usize::MAX };
        let all = |part: &str| -> Vec<Vec<Vec<f64>>> {
            rows.iter().enumerate().map(|(position, x)| of_heads(part, position, x)).collect()
        };
        let (queries, keys, values) = (all("q"), all("k"), all("v"));
        let attended = |row: usize| -> Vec<f64> {
            let mut flat = Vec::new();
            for (head, query) in queries[row].iter().enumerate() {
                let of = head / (heads / kv_heads);
                let seen = row.saturating_sub(window - 1)..row + 1;
                let score = |at: usize| -> f64 {
                    let dot: f64 = query.iter().zip(&keys[at][of]).map(|(q, k)| q * k).sum();
                    let score = dot * scale;
                    if is_near { 2.5 * (score / 2.5).tanh() } else { score }
                };
                let weights: Vec<f64> = seen.clone().map(|at| score(at).exp()).collect();
                let total: f64 = weights.iter().sum();
                let mixed =
                    |i: usize| seen.clone().zip(&weights).map(|(at, w)| w * values[at][of][i]).sum::<f64>();
                flat.extend((0..size).map(|i| mixed(i) / total));
            }
            flat
        };
        (0..rows.len()).map(|row| self.linear(&format!("{at}.o"), &attended(row))).collect()
    }

    fn feed_forward(&self, at: &str, kind: &str, x: &[f64]) -> Vec<f64> {
        let up = self.linear(&format!("{at}.up"), x);
        let inner: Vec<f64> = if kind == "near" {
            up.iter().map(|x| 0.5 * x * (1.0 + erf(x / std::f64::consts::SQRT_2))).collect()
        } else {
            let gate = self.linear(&format!("{at}.gate"), x);
            gate.iter().zip(&up).map(|(gate, up)| gate / (1.0 + (-gate).exp()) * up).collect()
        };
        self.linear(&format!("{at}.down"), &inner)
    }

    fn layer(&self, index: usize, rows: &[Vec<f64>]) -> Vec<Vec<f64>> {
        let (layer, at) = (LAYERS[index], format!("layers.{index}"));
        let norm =
            |place: &str, x: &[f64], epsilon| self.rms_with(&format!("{at}.norms.{place}"), x, epsilon);
        let reads =
            |place: &str, x: &[f64]| if layer.kind == "far" { x.to_vec() } else { norm(place, x, 1e-5) };
        let gives = |place: &str, x: Vec<f64>| if layer.kind == "wide" { norm(place, &x, 0.25) } else { x };
        let sum = |place: &str, x: &[f64], y: Vec<f64>| -> Vec<f64> {
            let sum: Vec<f64> = x.iter().zip(y).map(|(x, y)| x + y).collect();
            if layer.kind == "far" { self.layer_norm(&format!("{at}.norms.{place}"), &sum) } else { sum }
        };
        let read: Vec<Vec<f64>> = rows.iter().map(|x| reads("before_mixer", x)).collect();
        let mixed = self.attention(&format!("{at}.mixer"), layer, &read);
        let mixed = mixed.into_iter().zip(rows);
        let rows = mixed.map(|(y, x)| sum("after_mixer_residual", x, gives("after_mixer", y)));
        let fed = |x: Vec<f64>| {
            let y = self.feed_forward(&format!("{at}.ffn"), layer.kind, &reads("before_ffn", &x));
            sum("after_ffn_residual", &x, gives("after_ffn", y))
        };
        rows.map(fed).collect()
    }

    fn logits(&self, tokens: &[u32]) -> Vec<f64> {
        let table = self.weight("embed.table");
        let row = |token: &u32| table[*token as usize * WIDTH..][..WIDTH].to_vec();
        let embedded: Vec<Vec<f64>> = tokens.iter().map(row).collect();
        let rows = (0..LAYERS.len()).fold(embedded, |rows, index| self.layer(index, &rows));
        let normed = rows.iter().map(|x| self.rms("head.norm.weight", x));
        normed
            .flat_map(|x| {
                table
                    .chunks(WIDTH)
                    .map(move |row| row.iter().zip(&x).map(|(w, x)| w * x).sum())
                    .collect::<Vec<f64>>()
            })
            .collect()
    }
}

/// The error function by its series, which converges for all arguments of this test.
fn erf(x: f64) -> f64 {
    let (mut term, mut sum) = (x, x);
    for n in 1..200 {
        term *= -x * x / f64::from(n);
        sum += term / f64::from(2 * n + 1);
    }
    sum * std::f64::consts::FRAC_2_SQRT_PI
}

#[test]
fn layers_that_differ_give_the_numbers_of_a_plain_computation() {
    let model = open("numbers");
    let tokens: Vec<u32> = (0..9).map(|i| (i * 11 + 5) % VOCABULARY as u32).collect();
    let want = Plain(&model).logits(&tokens);
    let got = all_logits(&model, &tokens);
    assert_eq!(got.len(), want.len());
    let largest = want.iter().fold(0.0, |largest: f64, want| largest.max(want.abs()));
    let worst = got.iter().zip(&want).map(|(got, want)| (f64::from(*got) - want).abs()).fold(0.0, f64::max);
    assert!(worst < CLOSE * largest.max(1.0), "logits differ by {worst}; the largest is {largest}");
}

#[test]
fn each_layer_has_the_facts_of_its_kind() {
    let Facts { layers, .. } = open("facts").facts;
    let mut rotations = Vec::new();
    for (facts, sizes) in layers.iter().zip(LAYERS) {
        let Mixer::Attend(attend) = &facts.mixer else { panic!("it attends") };
        assert_eq!(
            (attend.heads, attend.kv_heads, attend.head_size),
            (sizes.heads, sizes.kv_heads, sizes.head_size)
        );
        assert_eq!((facts.kind.as_str(), facts.ffn.size()), (sizes.kind, Some(sizes.ffn)));
        assert_eq!(matches!(facts.ffn, Ffn::Plain { .. }), sizes.kind == "near");
        let (of, epsilon, weight) = match sizes.kind {
            "near" => (QkNorm::Heads, 1e-5, true),
            "far" => (QkNorm::Rows, 1e-3, true),
            _ => (QkNorm::RotatedHeads, 1e-5, false),
        };
        assert_eq!(attend.qk_norm, Some(QkNormFacts { of, epsilon, weight }));
        assert_eq!(facts.norms.norm.kind == NormKind::Layer, sizes.kind == "far");
        assert_eq!(facts.norms.positions.contains(&NormPosition::AfterFfn), sizes.kind == "wide");
        rotations.push(attend.rope.as_ref().unwrap().weight.clone());
    }
    // Two sizes of heads share a table, but no weight.
    assert_eq!(rotations, ["rope.near", "rope.full.8", "rope.near", "rope.full.10"]);
}

#[test]
fn a_configuration_gives_the_graph_of_the_model() {
    let key = Key { rows: 4, sequences: 1, context: 64, output_rows: 1, output: OutputKind::Logits };
    let text = layered::config().to_string();
    let shape =
        ModelShape::parse(text.as_bytes(), vec![layered::architecture()], &ModelLimits::DEFAULT).unwrap();
    let model = open("graph");
    assert_eq!(shape.facts, model.facts);
    let graph = model.graph(key, DType::F32).unwrap().to_string();
    assert_eq!(shape.graph(key, DType::F32).unwrap().to_string().replace("bf16", "f32"), graph);
}

#[test]
fn each_parameter_states_the_facts_that_were_read_from_it() {
    let (arch, facts) = (layered::architecture(), open("parameters").facts);
    let parameters = arch.parameters();
    let values = |name: &str| {
        let parameter = parameters.iter().find(|parameter| parameter.name == name).unwrap();
        parameter.values(&facts).into_iter().map(|(_, value)| value).collect::<Vec<_>>()
    };
    assert_eq!(values("mixer.heads"), [2, 4, 2, 3].map(FactValue::Size));
    assert_eq!(values("layer.near.mixer.head_size"), [4, 4].map(FactValue::Size));
    assert_eq!(values("mixer.span.window"), [3, 3].map(FactValue::Size));
    assert_eq!(values("rope.near.base"), [100.0, 100.0].map(FactValue::Number));
    assert!(values("layer.far.norms.epsilon").contains(&FactValue::Number(1e-3)));
}

#[test]
fn a_wrong_list_or_description_of_layers_is_refused() {
    let refusal = |key: &str, value: serde_json::Value| {
        let mut config = layered::config();
        config[key] = value;
        let text = config.to_string();
        let parsed = ModelShape::parse(text.as_bytes(), vec![layered::architecture()], &ModelLimits::DEFAULT);
        parsed.unwrap_err().to_string()
    };
    for (key, value, words) in [
        ("num_attention_heads", json!([4, 2, 2]), "lists 3 layers; the model has 4"),
        ("num_attention_heads", json!([4, 2, -1, 3]), "lists -1; integers from 0"),
        (
            "num_attention_heads",
            json!([4, 2, 0, 3]),
            "lists 0 for layer 2, which needs a positive mixer.heads",
        ),
        ("num_key_value_heads", json!([2, 1, 2, 2]), "3 query heads cannot share 2 KV heads"),
        ("layer_types", json!(["sliding", "full", "sliding", "strange"]), "the unknown kind 'strange'"),
        ("head_dim", json!([8, 8, 8, 8]), "one value is needed"),
    ] {
        let error = refusal(key, value.clone());
        assert!(error.contains(words), "{key} {value}: {error}");
    }
    let text = "based_on = 'decoder'\nname = 'x'\nmatch = {}\n";
    for (more, words) in [
        ("layers.kinds = ['a']\n[layer.b]", "[layer.a] is missing"),
        ("[layer.a]\n[layer.b]", "layers.kinds is empty"),
        ("layer = 1", "'layer' that is no table"),
        ("mixer.rope = 'a'", "need [rope.a]"),
        ("mixer.span = 'all'", "with [head] allows no span = \"all\""),
        ("mixer.kind = 'strange'", "unknown variant `strange`"),
        ("mixer.colour = 1", "unknown field `colour`"),
        ("weights.'layers.{i}.ffn.up.weight'.of = ['b']", "[layer.b] is missing"),
    ] {
        let error = schema::parse(&format!("{text}{more}")).unwrap_err().to_string();
        assert!(error.contains(words), "{more}: {error}");
    }
}
