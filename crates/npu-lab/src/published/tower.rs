//! The graph of the image tower of Gemma 3, a SigLIP (Zhai et al. 2023, arXiv 2303.15343), of its published sizes.
//!
//! The patches of an image attend to each other in 27 layers, which have the published 400M weights. Cutting the image
//! into patches before, and pooling and projecting its rows after the last norm are left out.

use std::fmt::Write as _;

use girih_graph::Graph;
use girih_tensor::Result;

/// Patches of an image of 896×896 pixels.
pub(super) const PATCHES: u32 = 4096;

const LAYERS: usize = 27;
const WIDTH: usize = 1152;
const HEADS: usize = 16;
const FEED_FORWARD: usize = 4304;

/// Values of a patch of 14×14 pixels.
const PATCH: usize = 3 * 14 * 14;

/// Returns the graph of a step of all patches of an image.
///
/// # Errors
/// When the graph has faults.
pub(super) fn graph() -> Result<Graph> {
    let mut text = TowerText(String::new());
    text.line(&format!("graph rows {PATCHES} sequences 1 context {PATCHES} output_rows {PATCHES} -> hidden"));
    text.line(&format!("input patches: [rows {PATCHES}, {PATCH}] f32"));
    text.line(&format!("input position_rows: [rows {PATCHES}, {WIDTH}] f32"));
    text.linear("embedded", "patches", [PATCH, WIDTH]);
    text.rows("x", WIDTH, "add embedded, position_rows");
    let mut x = "x".to_owned();
    for layer in 0..LAYERS {
        x = text.layer(&format!("layers.{layer}."), &x);
    }
    text.norm("normed", &x);
    text.line(&format!("output hidden: [output_rows {PATCHES}, {WIDTH}] = gather normed"));
    text.0.parse()
}

/// The text of the graph.
struct TowerText(String);

impl TowerText {
    fn line(&mut self, line: &str) {
        writeln!(self.0, "{line}").expect("a string takes any text");
    }

    /// Adds a node whose value has rows of `width` values.
    fn rows(&mut self, name: &str, width: usize, node: &str) {
        self.line(&format!("{name}: [rows {PATCHES}, {width}] = {node}"));
    }

    fn linear(&mut self, name: &str, x: &str, [from, to]: [usize; 2]) {
        self.line(&format!("weight {name}.weight: [{to}, {from}] bf16"));
        self.line(&format!("weight {name}.bias: [{to}] bf16"));
        self.rows(name, to, &format!("linear {x}, {name}.weight, {name}.bias"));
    }

    fn norm(&mut self, name: &str, x: &str) {
        self.line(&format!("weight {name}.weight: [{WIDTH}] bf16"));
        self.line(&format!("weight {name}.bias: [{WIDTH}] bf16"));
        self.rows(name, WIDTH, &format!("layer_norm(epsilon=1e-6) {x}, {name}.weight, {name}.bias"));
    }

    /// Adds a layer, and returns the name of its result.
    fn layer(&mut self, at: &str, x: &str) -> String {
        let of = |name: &str| format!("{at}{name}");
        let (normed, mixed) = (of("mixer.normed"), of("mixer.mixed"));
        self.norm(&normed, x);
        for name in ["q", "k", "v"].map(|name| of(&format!("mixer.{name}"))) {
            self.linear(&name, &normed, [WIDTH, WIDTH]);
            self.heads(&format!("{name}.heads"), &format!("reshape {name}"));
        }
        let scale = ((WIDTH / HEADS) as f32).powf(-0.5);
        let operands = ["q", "k", "v"].map(|name| of(&format!("mixer.{name}.heads"))).join(", ");
        self.heads(&format!("{mixed}.heads"), &format!("attend(scale={scale:?} span=all) {operands}"));
        self.rows(&mixed, WIDTH, &format!("reshape {mixed}.heads"));
        let [o, sum, normed] = ["mixer.o", "mixer.sum", "ffn.normed"].map(of);
        self.linear(&o, &mixed, [WIDTH, WIDTH]);
        self.rows(&sum, WIDTH, &format!("add {x}, {o}"));
        self.norm(&normed, &sum);
        let [up, active, down, y] = ["ffn.up", "ffn.active", "ffn.down", "ffn.sum"].map(of);
        self.linear(&up, &normed, [WIDTH, FEED_FORWARD]);
        self.rows(&active, FEED_FORWARD, &format!("activate(act=gelu_tanh) {up}"));
        self.linear(&down, &active, [FEED_FORWARD, WIDTH]);
        self.rows(&y, WIDTH, &format!("add {sum}, {down}"));
        y
    }

    /// Adds a node whose value has rows of heads.
    fn heads(&mut self, name: &str, node: &str) {
        let size = WIDTH / HEADS;
        self.line(&format!("{name}: [rows {PATCHES}, {HEADS}, {size}] = {node}"));
    }
}

#[cfg(test)]
mod tests {
    use girih_graph::faults;

    use super::*;

    #[test]
    fn the_tower_has_the_published_number_of_weights() {
        let graph = graph().unwrap();
        assert_eq!(faults(&graph), []);
        let weights = graph.ids().filter(|(_, value)| value.role == girih_graph::Role::Weight);
        let count: usize = weights.map(|(_, value)| value.shape.elements()).sum();
        // 400M, with the positions, which this graph takes as rows.
        let count = count + PATCHES as usize * WIDTH;
        assert!((410_000_000..420_000_000).contains(&count), "{count} weights");
    }
}
