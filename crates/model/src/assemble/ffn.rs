//! The feed-forward part.

use girih_graph::{GateRule, Op, Router, RouterScore, ValueId, Weighed, Xielu};
use girih_tensor::{Error, Result};

use super::Assembly;
use super::adapters::Adapters;
use crate::arch::{ExpertsFacts, Ffn, LayerFacts, NormPosition, PlainAct};

impl Assembly<'_> {
    /// The feed-forward part on `x`.
    pub(super) fn feed_forward(&mut self, at: &str, ffn: &Ffn, x: ValueId) -> Result<ValueId> {
        self.adapted_ffn(at, ffn, None, x)
    }

    /// The feed-forward part on `x`; that of a block has adapters of gate and up.
    pub(super) fn adapted_ffn(
        &mut self,
        at: &str,
        ffn: &Ffn,
        adapters: Option<Adapters>,
        x: ValueId,
    ) -> Result<ValueId> {
        let width = self.facts.sizes.width;
        match *ffn {
            Ffn::Gated { size, act, limit, cutoff, gate_scale, output_scale, biases: [gate, up, down] } => {
                let sizes = [width, size];
                let mut gate = self.adapted(&format!("{at}.gate"), x, sizes, (gate, adapters))?;
                if let Some(deviations) = cutoff {
                    gate = self.graph.same(&format!("{at}.gate.cut"), Op::Sparsify { deviations }, &[gate]);
                }
                let gate = self.scaled(&format!("{at}.gate.scaled"), gate_scale, gate);
                let up = self.adapted(&format!("{at}.up"), x, sizes, (up, adapters))?;
                let gate_op = Op::Gate { act, limit, offset: None };
                let gated = self.graph.same(&format!("{at}.gated"), gate_op, &[gate, up]);
                let out = self.linear(&format!("{at}.down"), gated, [size, width], down)?;
                Ok(self.scaled(&format!("{at}.down.scaled"), output_scale, out))
            }
            Ffn::Plain { size, act, biases: [up, down] } => {
                let up = self.linear(&format!("{at}.up"), x, [width, size], up)?;
                let op = match act {
                    PlainAct::Plain(act) => Op::Activate { act },
                    PlainAct::Xielu(Xielu { positive, negative, beta, epsilon }) => {
                        Op::Xielu { positive, negative, beta, epsilon }
                    }
                };
                let activated = self.graph.same(&format!("{at}.activated"), op, &[up]);
                self.linear(&format!("{at}.down"), activated, [size, width], down)
            }
            Ffn::Experts(ref experts) => self.experts(at, experts, x, x),
            Ffn::None => Ok(x),
        }
    }

    /// The sum of a dense part's result and of the experts beside it, each with its norm. The experts and their router
    /// read `x`.
    pub(super) fn with_experts(
        &mut self,
        at: &str,
        layer: &LayerFacts,
        [x, dense]: [ValueId; 2],
    ) -> Result<ValueId> {
        let Some(facts) = &layer.beside else { return Ok(dense) };
        let dense = self.norm_at(at, layer, NormPosition::AfterDense, dense)?;
        let read = self.norm_at(at, layer, NormPosition::BeforeExperts, x)?;
        let routed = self.experts(&format!("{at}.ffn"), facts, read, x)?;
        let routed = self.norm_at(at, layer, NormPosition::AfterExperts, routed)?;
        Ok(self.graph.same(&format!("{at}.ffn.both"), Op::Add, &[dense, routed]))
    }

    /// The experts that each row of `chooses` chooses for `x`, and the shared one.
    fn experts(
        &mut self,
        at: &str,
        facts: &ExpertsFacts,
        x: ValueId,
        mut chooses: ValueId,
    ) -> Result<ValueId> {
        let width = self.facts.sizes.width;
        let router = format!("{at}.router");
        if let Some(epsilon) = facts.router_norm {
            let (normed, weight) = (format!("{router}.normed"), format!("{router}.norm"));
            chooses = self.rms_norm(&normed, &weight, chooses, width, epsilon)?;
            let op = Op::Scale { factor: 1.0 / (width as f32).sqrt() };
            chooses = self.graph.same(&format!("{router}.scaled"), op, &[chooses]);
        }
        let mut scores = self.linear(&router, chooses, [width, facts.count], facts.router_bias)?;
        if let Some(cap) = facts.router_softcap {
            scores = self.graph.same(&format!("{router}.capped"), Op::Softcap { cap }, &[scores]);
        }
        let mut operands = vec![scores];
        if facts.choice_bias {
            operands.push(self.weight(&format!("{router}.choice.bias"), &[facts.count])?);
        }
        let mut weights = self.graph.same(&format!("{router}.weights"), route(facts.router), &operands);
        if facts.router_factors {
            let factors = self.weight(&format!("{router}.factors"), &[facts.count])?;
            weights =
                self.graph.same(&format!("{router}.scaled_weights"), Op::ScaleColumns, &[weights, factors]);
        }
        let experts = format!("{at}.experts");
        let GateRule { act, limit, offset } = facts.gate;
        let weighed = if facts.weighs_inputs { Weighed::Inputs } else { Weighed::Results };
        let op = Op::Experts { used: facts.router.used, act, limit, offset, weighed };
        let routed = match facts.latent {
            None => {
                let sizes = [facts.count, facts.size, width];
                self.stack(&experts, op, [x, weights], sizes, facts.ungated, facts.biases)?
            }
            Some(latent) => {
                let read = self.linear(&format!("{at}.latent.in"), x, [width, latent], false)?;
                let sizes = [facts.count, facts.size, latent];
                let made = self.stack(&experts, op, [read, weights], sizes, facts.ungated, facts.biases)?;
                self.linear(&format!("{at}.latent.out"), made, [latent, width], false)?
            }
        };
        let Some(size) = facts.shared_ffn else { return Ok(routed) };
        let shared = self.shared_expert(&format!("{at}.shared"), size, facts, x)?;
        if !facts.shared_is_averaged {
            return Ok(self.graph.same(&format!("{at}.joined"), Op::Add, &[routed, shared]));
        }
        let sum = self.graph.same(&format!("{at}.sum"), Op::Add, &[routed, shared]);
        Ok(self.graph.same(&format!("{at}.joined"), Op::Scale { factor: 0.5 }, &[sum]))
    }

    /// The expert that all rows pass through. A score makes it an expert that each row chooses.
    fn shared_expert(&mut self, at: &str, size: usize, facts: &ExpertsFacts, x: ValueId) -> Result<ValueId> {
        let (width, act, limit) = (self.facts.sizes.width, facts.gate.act, facts.shared_limit);
        if !facts.shared_is_scored && facts.ungated {
            let act = PlainAct::Plain(act);
            return self.feed_forward(at, &Ffn::Plain { size, act, biases: [false; 2] }, x);
        }
        if !facts.shared_is_scored {
            let (cutoff, gate_scale, output_scale, biases) = (None, None, None, [false; 3]);
            let gated = Ffn::Gated { size, act, limit, cutoff, gate_scale, output_scale, biases };
            return self.feed_forward(at, &gated, x);
        }
        let score = self.linear(&format!("{at}.score"), x, [width, 1], false)?;
        let router = Router {
            score: RouterScore::Sigmoid,
            used: 1,
            normalized: None,
            groups: None,
            factor: None,
            near: None,
        };
        let weights = self.graph.same(&format!("{at}.weights"), route(router), &[score]);
        let op = Op::Experts { used: 1, act, limit, offset: None, weighed: Weighed::Results };
        self.stack(at, op, [x, weights], [1, size, width], facts.ungated, [false; 3])
    }

    /// Experts of `[count, size, width]`, with the weights below `at`.
    fn stack(
        &mut self,
        at: &str,
        op: Op,
        [x, weights]: [ValueId; 2],
        [count, size, width]: [usize; 3],
        ungated: bool,
        biases: [bool; 3],
    ) -> Result<ValueId> {
        let up = self.weight(&format!("{at}.up.weight"), &[count, size, width])?;
        let down = self.weight(&format!("{at}.down.weight"), &[count, width, size])?;
        let mut operands = vec![x, weights, up, down];
        if !ungated {
            operands.push(self.weight(&format!("{at}.gate.weight"), &[count, size, width])?);
        }
        match biases {
            [false, false, false] => {}
            [true, true, true] => {
                for (part, columns) in [("gate", size), ("up", size), ("down", width)] {
                    operands.push(self.weight(&format!("{at}.{part}.bias"), &[count, columns])?);
                }
            }
            _ => {
                let sentence =
                    format!("'{at}' has biases for some of gate, up and down; all or none are needed");
                return Err(Error::new(sentence));
            }
        }
        Ok(self.graph.shaped(&format!("{at}.out"), op, &operands, &[width]))
    }
}

fn route(router: Router) -> Op {
    let Router { score, used, normalized, groups, factor, near } = router;
    Op::Route { score, used, normalized, groups, factor, near }
}
