//! Layers with several residual streams: each predicts all streams, computes with the first one, and corrects all by
//! what it has changed in that one.

use girih_graph::{Op, ValueId};
use girih_tensor::{Error, Result};

use super::{Assembly, layer_output};
use crate::arch::{LayerFacts, Mixer, NormPosition, ONE, STREAMS, StreamsFacts};

/// The smallest mean square of a stream that is made as large as the first one: transformers' `Gemma3nTextModel` has it
/// as a constant.
const LEAST_SQUARE: f32 = 1e-5;

/// The norms of a layer.
const NORMS: [NormPosition; 4] =
    [NormPosition::BeforeMixer, NormPosition::AfterMixer, NormPosition::BeforeFfn, NormPosition::AfterFfn];

impl Assembly<'_> {
    /// All layers on the embedding `x`, then the mean of the streams, each projected and as large as the first one.
    pub(super) fn streamed(&mut self, streams: StreamsFacts, x: ValueId) -> Result<ValueId> {
        let mut xs = [x; STREAMS];
        for (stream, into) in xs.iter_mut().enumerate().skip(1) {
            *into = self.as_large_as(&format!("embed.streams.{stream}"), x, x)?;
        }
        let facts = self.facts;
        for (index, layer) in facts.layers.iter().enumerate() {
            xs = self.streamed_layer(index, layer, streams, xs)?;
        }
        let mut sum = xs[0];
        for (stream, x) in xs.into_iter().enumerate().skip(1) {
            let name = format!("head.streams.{stream}");
            let made = self.as_large_as(&name, x, xs[0])?;
            sum = self.graph.same(&format!("{name}.added"), Op::Add, &[sum, made]);
        }
        let op = Op::Scale { factor: 1.0 / STREAMS as f32 };
        Ok(self.graph.same("head.streams.mean", op, &[sum]))
    }

    /// A projection of `x` with the root mean square of `like`.
    fn as_large_as(&mut self, name: &str, x: ValueId, like: ValueId) -> Result<ValueId> {
        let width = self.facts.sizes.width;
        let made = self.linear(name, x, [width, width], false)?;
        let op = Op::MatchRms { least: LEAST_SQUARE };
        Ok(self.graph.same(&format!("{name}.matched"), op, &[made, like]))
    }

    /// A layer on all streams.
    fn streamed_layer(
        &mut self,
        index: usize,
        layer: &LayerFacts,
        streams: StreamsFacts,
        xs: [ValueId; STREAMS],
    ) -> Result<[ValueId; STREAMS]> {
        let at = format!("layers.{index}");
        let predicted = self.predicted(&at, layer, xs)?;
        let changed = self.changed(index, layer, streams, predicted[0])?;
        let mut corrected = self.corrected(index, layer, predicted, changed)?;
        let Some(input) = &layer.input else { return Ok(corrected) };
        let mut gate = corrected[0];
        if streams.scaled {
            let weight = self.weight(&format!("{at}.streams.scale"), &[self.facts.sizes.width])?;
            gate = self.graph.same(&format!("{at}.streams.scaled"), Op::ScaleColumns, &[gate, weight]);
        }
        let out = self.layer_input(&at, layer, input, gate)?;
        for (stream, x) in corrected.iter_mut().enumerate().skip(1) {
            *x = self.graph.same(&format!("{at}.streams.joined.{stream}"), Op::Add, &[*x, out]);
        }
        Ok(corrected)
    }

    /// How much each stream counts, as the first one or what it has become says: a number from −1 to 1 for each.
    fn modes(&mut self, at: &str, name: &str, layer: &LayerFacts, x: ValueId) -> Result<ValueId> {
        let (width, epsilon) = (self.facts.sizes.width, layer.norms.norm.epsilon);
        let (router, name) = (format!("{at}.streams.router"), format!("{at}.streams.{name}"));
        let x = self.rms_norm(&format!("{name}.normed"), &format!("{router}.norm"), x, width, epsilon)?;
        let op = Op::Scale { factor: 1.0 / width as f32 };
        let x = self.graph.same(&format!("{name}.scaled"), op, &[x]);
        let weight = self.weight(&format!("{router}.weight"), &[STREAMS, width])?;
        let routed = self.graph.shaped(&format!("{name}.routed"), Op::Linear, &[x, weight], &[STREAMS]);
        Ok(self.graph.same(&format!("{name}.modes"), Op::Softcap { cap: 1.0 }, &[routed]))
    }

    /// Each stream plus a mix of all.
    fn predicted(
        &mut self,
        at: &str,
        layer: &LayerFacts,
        xs: [ValueId; STREAMS],
    ) -> Result<[ValueId; STREAMS]> {
        let width = self.facts.sizes.width;
        let modes = self.modes(at, "predict", layer, xs[0])?;
        let mut all = None;
        for (stream, x) in xs.into_iter().enumerate() {
            let name = format!("{at}.streams.{stream}");
            let head = self.graph.shaped(&format!("{name}.head"), Op::Reshape, &[x], &[1, width]);
            all = Some(match all {
                None => head,
                Some(before) => {
                    let op = Op::Concat;
                    let inner = [1, (stream + 1) * width];
                    self.graph.shaped(&format!("{name}.joined"), op, &[before, head], &inner)
                }
            });
        }
        let all = all.ok_or_else(|| Error::new("a model without residual streams"))?;
        let name = format!("{at}.streams.all");
        let all = self.graph.shaped(&name, Op::Reshape, &[all], &[STREAMS, width]);
        let mut predicted = xs;
        for (stream, x) in predicted.iter_mut().enumerate() {
            let name = format!("{at}.streams.predict.{stream}");
            let weights = self.linear(&name, modes, [STREAMS, STREAMS], false)?;
            let mixed = self.graph.shaped(&format!("{name}.mixed"), Op::MixHeads, &[weights, all], &[width]);
            *x = self.graph.same(&format!("{name}.predicted"), Op::Add, &[*x, mixed]);
        }
        Ok(predicted)
    }

    /// The first stream after attention, the matrices beside it, and the feed-forward part.
    fn changed(
        &mut self,
        index: usize,
        layer: &LayerFacts,
        streams: StreamsFacts,
        x: ValueId,
    ) -> Result<ValueId> {
        let (at, width) = (format!("layers.{index}"), self.facts.sizes.width);
        let is_plain = !layer.residual.parallel && layer.residual.scale.is_none() && layer.scale.is_none();
        if !is_plain || layer.beside.is_some() || layer.norms.positions != NORMS {
            return Err(Error::new(
                "layers with several residual streams have no factors and no experts beside a feed-forward part, and \
                 norms before and after both parts",
            ));
        }
        let Mixer::Attend(attend) = &layer.mixer else {
            return Err(Error::new("layers with several residual streams need attention"));
        };
        let read = self.norm_at(&at, layer, NormPosition::BeforeMixer, x)?;
        let laurel = format!("{at}.laurel");
        let low = self.linear(&format!("{laurel}.in"), read, [width, streams.rank], false)?;
        let out = self.linear(&format!("{laurel}.out"), low, [streams.rank, width], false)?;
        let (normed, weight) = (format!("{laurel}.normed"), format!("{laurel}.norm"));
        let out = self.rms_norm(&normed, &weight, out, width, layer.norms.norm.epsilon)?;
        let beside = self.graph.same(&format!("{laurel}.joined"), Op::Add, &[read, out]);
        let attended = self.attend(index, &format!("{at}.mixer"), attend, self.attention_rows(read))?;
        let attended = self.norm_at(&at, layer, NormPosition::AfterMixer, attended)?;
        let attended = self.graph.same(&format!("{at}.attended"), Op::Add, &[x, attended]);
        let both = self.graph.same(&format!("{at}.both"), Op::Add, &[attended, beside]);
        let op = Op::Scale { factor: std::f32::consts::FRAC_1_SQRT_2 };
        let mixed = self.graph.same(&format!("{at}.mixed"), op, &[both]);
        let read = self.norm_at(&at, layer, NormPosition::BeforeFfn, mixed)?;
        let fed = self.feed_forward(&format!("{at}.ffn"), &layer.ffn, read)?;
        let fed = self.norm_at(&at, layer, NormPosition::AfterFfn, fed)?;
        Ok(self.graph.same(&format!("{at}.fed"), Op::Add, &[mixed, fed]))
    }

    /// Each predicted stream plus its share of the difference between the first one and what it has become.
    fn corrected(
        &mut self,
        index: usize,
        layer: &LayerFacts,
        predicted: [ValueId; STREAMS],
        changed: ValueId,
    ) -> Result<[ValueId; STREAMS]> {
        let (at, width) = (format!("layers.{index}"), self.facts.sizes.width);
        let modes = self.modes(&at, "correct", layer, changed)?;
        let op = Op::Scale { factor: -1.0 };
        let before = self.graph.same(&format!("{at}.streams.before"), op, &[predicted[0]]);
        let change = self.graph.same(&format!("{at}.streams.change"), Op::Add, &[changed, before]);
        let name = format!("{at}.streams.change.head");
        let change = self.graph.shaped(&name, Op::Reshape, &[change], &[1, width]);
        let one = self.weight(ONE, &[1])?;
        let mut corrected = predicted;
        for (stream, x) in corrected.iter_mut().enumerate() {
            let name = format!("{at}.streams.correct.{stream}");
            let weight = self.weight(&format!("{name}.weight"), &[1, STREAMS])?;
            let share = self.graph.shaped(&name, Op::Linear, &[modes, weight, one], &[1]);
            let step = self.graph.shaped(&format!("{name}.step"), Op::MixHeads, &[share, change], &[width]);
            let name = if stream == 0 { layer_output(index) } else { format!("{name}.corrected") };
            *x = self.graph.same(&name, Op::Add, &[*x, step]);
        }
        Ok(corrected)
    }
}
