//! The energy that the NPU's rail supplies for a step: a constant power while the array works, and an energy for each
//! layer.
//!
//! Both figures are fitted to the watts of three Llama models that FastFlowLM publishes
//! (`tables/power_fastflowlm_llama3.csv`). There, a larger model draws less power, although more bytes and more
//! multiply-accumulates pass in a second; power follows the layers that run in a second. So bytes and multiply-accumulates
//! have no energy of their own here. DRAM and the host have other rails and are not estimated.

use std::collections::BTreeSet;

use girih_graph::split::name_in_layer;
use girih_graph::{Graph, Node, Op};
use girih_npu::Target;
use serde::Serialize;

/// The estimated energy of a step on the NPU's rail.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct EnergyEstimate {
    /// The constant power times array time.
    pub static_joules: f64,
    /// The energy of the layers.
    pub layer_joules: f64,
}

impl EnergyEstimate {
    /// The estimate of a step of `graph` that takes `seconds` of the array.
    pub fn of(target: &Target, graph: &Graph, seconds: f64) -> EnergyEstimate {
        EnergyEstimate::of_layers(target, layers(graph), seconds)
    }

    fn of_layers(target: &Target, layers: usize, seconds: f64) -> EnergyEstimate {
        let power = &target.power;
        EnergyEstimate {
            static_joules: power.static_watts * seconds,
            layer_joules: power.joules_per_layer * layers as f64,
        }
    }

    /// All energy.
    pub fn joules(&self) -> f64 {
        self.static_joules + self.layer_joules
    }
}

/// The layers of a graph: each has an op that mixes positions, and some have several.
fn layers(graph: &Graph) -> usize {
    let mixes = |node: &&Node| {
        matches!(
            node.op,
            Op::Attend { .. }
                | Op::AttendLatent { .. }
                | Op::DeltaRule { .. }
                | Op::ShortConv
                | Op::SsmScan { .. }
        )
    };
    let layer = |node: &Node| {
        let name = graph.value(node.output).name.as_str();
        name.strip_suffix(name_in_layer(name)).unwrap_or(name).to_owned()
    };
    graph.nodes.iter().filter(mixes).map(layer).collect::<BTreeSet<_>>().len()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A row of the table: whether it is a prefill, layers that run in a second, and watts.
    fn rows() -> Vec<(bool, f64, f64)> {
        let text = include_str!("../tables/power_fastflowlm_llama3.csv");
        let row = |line: &str| {
            let cells: Vec<&str> = line.split(',').collect();
            let number = |at: usize| cells[at].parse::<f64>().unwrap();
            let is_prefill = cells[0] == "prefill";
            let rate = if is_prefill { 0.0 } else { number(3) };
            (is_prefill, number(2) * rate, number(5))
        };
        text.lines().skip(2).map(row).collect()
    }

    #[test]
    fn the_figures_follow_from_the_published_rows() {
        let rows = rows();
        let (prefill, decode): (Vec<_>, Vec<_>) = rows.into_iter().partition(|row| row.0);
        let mean = prefill.iter().map(|row| row.2).sum::<f64>() / prefill.len() as f64;
        let products = decode.iter().map(|(_, layers, watts)| layers * (watts - mean)).sum::<f64>();
        let squares = decode.iter().map(|(_, layers, _)| layers * layers).sum::<f64>();
        let power = Target::named("xdna2-strix").unwrap().power;
        assert!((power.static_watts - mean).abs() < 5e-4, "{mean}");
        assert!((power.joules_per_layer - products / squares).abs() < 5e-7, "{}", products / squares);
        for (_, layers, watts) in decode {
            let found = power.static_watts + power.joules_per_layer * layers;
            assert!((found / watts - 1.0).abs() < 0.05, "{found} {watts}");
        }
    }

    /// A layer of Mamba-2 has three convolutions and a scan; a layer of attention has one op that mixes positions.
    #[test]
    fn a_layer_with_several_ops_that_mix_positions_counts_once() {
        let mut text = "graph rows 8 sequences 1 context 64 output_rows 8 -> hidden\n\
                        group carried carried\n\
                        input start: [rows 8, 2] f32\n"
            .to_owned();
        let mut x = "start".to_owned();
        for name in ["layers.0.mixer.x", "layers.0.mixer.b", "layers.0.mixer.c", "layers.1.mixer.x"] {
            text += &format!("weight {name}.taps: [3, 2] f32\nstate {name}.carried: [2, 2] f32 in carried\n");
            text += &format!("{name}: [rows 8, 2] = short_conv {x}, {name}.taps, {name}.carried\n");
            x = name.to_owned();
        }
        text += &format!("output z: [output_rows 8, 2] = gather {x}\n");
        assert_eq!(layers(&text.parse().unwrap()), 2);
    }

    #[test]
    fn energy_is_that_of_time_and_of_layers() {
        let target = Target::named("xdna2-strix").unwrap();
        let energy = EnergyEstimate::of_layers(&target, 16, 0.1);
        assert_eq!(energy.static_joules, target.power.static_watts * 0.1);
        assert_eq!(energy.joules(), energy.static_joules + 16.0 * target.power.joules_per_layer);
    }
}
