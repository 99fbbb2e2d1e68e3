//! Mixers. Attention: projections, norms of heads, rotation, state, scores. Short convolutions:
//! projections, gates, taps.

use girih_graph::{Act, Op, Span, Temperature, ValueId};
use girih_tensor::{Error, Result, Shape};

use super::Assembly;
use super::adapters::AttentionRows;
use crate::arch::{
    AttentionFacts, LatentFacts, OutputGate, QkNorm, QkNormFacts, Rope, ShortConvFacts, ValuesFacts,
};

impl Assembly<'_> {
    /// Attention of layer `index` on rows, from the input projections to the output projection.
    pub(super) fn attend(
        &mut self,
        index: usize,
        at: &str,
        attend: &AttentionFacts,
        mut rows: AttentionRows,
    ) -> Result<ValueId> {
        if let Some(latent) = &attend.latent {
            return self.attend_latent(at, attend, *latent, rows.x);
        }
        let width = self.facts.sizes.width;
        let (size, span) = (attend.head_size, attend.span);
        let value_size = attend.value_size.unwrap_or(size);
        let biases = attend.biases;
        rows.x = self.scaled(&format!("{at}.attention.read"), attend.input_scale, rows.x);
        let q = self.projected(&format!("{at}.q"), rows, attend.heads * size, biases.q)?;
        let q = self.directed(&format!("{at}.q"), attend, q, attend.heads)?;
        let q = self.one_position_on(&format!("{at}.q.turned"), attend, q)?;
        let [keys, values] = self.keys_and_values(index, at, attend, rows)?;
        let q = self.tempered(&format!("{at}.q.tempered"), attend, q);
        let q = self.spread(&format!("{at}.q"), q, span, &[size]);
        let op = Op::Attend { scale: attend.scale, span, softcap: attend.softcap };
        let mut operands = vec![q, keys, values];
        if attend.sinks {
            operands.push(self.weight(&format!("{at}.sinks"), &[attend.heads])?);
        }
        let results = [attend.heads, value_size];
        let mut mixed = self.graph.shaped(&format!("{at}.heads"), op, &operands, &results);
        mixed = self.spread(&format!("{at}.heads"), mixed, span, &[value_size]);
        if let Some(OutputGate { act, by_head: true }) = attend.gate {
            let gate = self.linear(&format!("{at}.gate"), rows.x, [rows.width, attend.heads], false)?;
            let op = Op::GateHeads { act };
            mixed = self.graph.shaped(&format!("{at}.gated"), op, &[gate, mixed], &results);
        }
        let mut flat =
            self.graph.shaped(&format!("{at}.flat"), Op::Reshape, &[mixed], &[attend.heads * value_size]);
        if let Some(OutputGate { act, by_head: false }) = attend.gate {
            let sizes = [rows.width, attend.heads * value_size];
            let gate = self.linear(&format!("{at}.gate"), rows.x, sizes, false)?;
            flat = self.graph.same(&format!("{at}.gated"), Op::gate(act), &[gate, flat]);
        }
        let out = self.linear(&format!("{at}.o"), flat, [attend.heads * value_size, width], biases.o)?;
        Ok(self.scaled(&format!("{at}.o.scaled"), attend.output_scale, out))
    }

    /// Queries, multiplied by position if the layer has a temperature.
    fn tempered(&mut self, name: &str, attend: &AttentionFacts, q: ValueId) -> ValueId {
        match attend.temperature {
            None => q,
            Some(Temperature { beta, every, offset }) => {
                self.graph.same(name, Op::Temper { beta, every, offset }, &[q])
            }
        }
    }

    /// Latent attention on `x`. Queries become queries of latents, and sums of latents become values, by a matrix
    /// of each head; so no key or value of a head is computed.
    fn attend_latent(
        &mut self,
        at: &str,
        attend: &AttentionFacts,
        latent: LatentFacts,
        x: ValueId,
    ) -> Result<ValueId> {
        let (heads, width) = (attend.heads, self.facts.sizes.width);
        let LatentFacts { query_rank, rank, nope, rope, value_size, epsilon, biases, indexer } = latent;
        let (of_q, q_width) = match query_rank {
            None => (x, width),
            Some(size) => {
                let name = format!("{at}.q_a");
                let made = self.linear(&name, x, [width, size], biases)?;
                let (normed, weight) = (format!("{name}.normed"), format!("{name}.norm"));
                (self.rms_norm(&normed, &weight, made, size, epsilon)?, size)
            }
        };
        let q_nope = self.linear(&format!("{at}.q.nope"), of_q, [q_width, heads * nope], false)?;
        let q_nope = self.as_heads(&format!("{at}.q.nope"), q_nope, [heads, nope]);
        let k_up = self.weight(&format!("{at}.k.up.weight"), &[heads, rank, nope])?;
        let q_latent =
            self.graph.shaped(&format!("{at}.q.latent"), Op::LinearHeads, &[q_nope, k_up], &[heads, rank]);
        let q_rope = self.linear(&format!("{at}.q.rope"), of_q, [q_width, heads * rope], false)?;
        let q_rope = self.rotated_heads(&format!("{at}.q.rope"), attend, q_rope, [heads, rope])?;
        let both = [heads, rank + rope];
        let q = self.graph.shaped(&format!("{at}.q"), Op::Concat, &[q_latent, q_rope], &both);
        let q = self.tempered(&format!("{at}.q.tempered"), attend, q);
        let (parts, span) = ([rank, rank + rope], attend.span);
        let q = self.spread(&format!("{at}.q"), q, span, &parts);
        let held = self.linear(&format!("{at}.latent"), x, [width, rank], biases)?;
        let (normed, weight) = (format!("{at}.latent.normed"), format!("{at}.latent.norm"));
        let held = self.rms_norm(&normed, &weight, held, rank, epsilon)?;
        let held = self.as_heads(&format!("{at}.latent"), held, [1, rank]);
        let k_rope = self.linear(&format!("{at}.k.rope"), x, [width, rope], biases)?;
        let k_rope = self.rotated_heads(&format!("{at}.k.rope"), attend, k_rope, [1, rope])?;
        let inner = [1, rank + rope];
        let row = self.graph.shaped(&format!("{at}.latents.row"), Op::Concat, &[held, k_rope], &inner);
        let row = self.spread(&format!("{at}.latents"), row, span, &parts);
        let latents = self.stored(&format!("{at}.latents"), row, span, inner);
        let op = Op::AttendLatent { scale: attend.scale, span, values: rank as u32 };
        let mut operands = vec![q, latents];
        if let Some(indexer) = indexer {
            operands.push(self.selected(at, attend, indexer, [x, of_q], q_width)?);
        }
        let mixed = self.graph.shaped(&format!("{at}.heads"), op, &operands, &[heads, rank]);
        let mixed = self.spread(&format!("{at}.heads"), mixed, span, &parts);
        let v_up = self.weight(&format!("{at}.v.up.weight"), &[heads, value_size, rank])?;
        let values =
            self.graph.shaped(&format!("{at}.values"), Op::LinearHeads, &[mixed, v_up], &[heads, value_size]);
        let flat = self.graph.shaped(&format!("{at}.flat"), Op::Reshape, &[values], &[heads * value_size]);
        self.linear(&format!("{at}.o"), flat, [heads * value_size, width], attend.biases.o)
    }

    /// A projection as heads, which are rotated if the layer rotates.
    fn rotated_heads(
        &mut self,
        name: &str,
        attend: &AttentionFacts,
        flat: ValueId,
        sizes: [usize; 2],
    ) -> Result<ValueId> {
        let heads = self.as_heads(name, flat, sizes);
        match &attend.rope {
            None => Ok(heads),
            Some(rope) => self.rotate(&format!("{name}.rotated"), rope, heads),
        }
    }

    /// The keys and values of layer `index` that its attention reads: those of all positions, or of the rows of a
    /// step. A layer that shares them with an earlier one has none of its own.
    fn keys_and_values(
        &mut self,
        index: usize,
        at: &str,
        attend: &AttentionFacts,
        rows: AttentionRows,
    ) -> Result<[ValueId; 2]> {
        let ValuesFacts { norm, are_keys, of_layer, of_model } = attend.values;
        if let Some(layer) = of_layer.or(of_model.then_some(index)) {
            return self.keys_and_values.get(&layer).copied().ok_or_else(|| {
                Error::new(format!("'{at}' needs the keys and values of layer {layer}, which has none"))
            });
        }
        let heads = attend.kv_heads;
        let of_values = [heads, attend.value_size.unwrap_or(attend.head_size)];
        let size = attend.kv_heads * attend.head_size;
        let projected = self.projected(&format!("{at}.k"), rows, size, attend.biases.k)?;
        let k = self.directed(&format!("{at}.k"), attend, projected, attend.kv_heads)?;
        let mut v = match are_keys {
            true => self.as_heads(&format!("{at}.v"), projected, of_values),
            false => {
                let name = format!("{at}.v");
                let flat = self.projected(&name, rows, of_values[0] * of_values[1], attend.biases.v)?;
                self.as_heads(&name, flat, of_values)
            }
        };
        if let Some(factor) = attend.value_factor {
            v = self.graph.same(&format!("{at}.v.scaled"), Op::Scale { factor }, &[v]);
        }
        if let Some(epsilon) = norm {
            v = self.graph.same(&format!("{at}.v.normed"), Op::Norm { epsilon }, &[v]);
        }
        let both = match attend.span {
            Span::All | Span::Mutual => [k, v],
            span => [
                self.kept(&format!("{at}.keys"), k, span, [heads, attend.head_size]),
                self.kept(&format!("{at}.values"), v, span, of_values),
            ],
        };
        self.keys_and_values.insert(index, both);
        Ok(both)
    }

    /// A gated short convolution of `x`: the products of two projections are convolved, and gated by
    /// a third one.
    pub(super) fn short_conv(&mut self, at: &str, conv: &ShortConvFacts, x: ValueId) -> Result<ValueId> {
        let (width, taps, product) = (self.facts.sizes.width, conv.taps, Op::gate(Act::Identity));
        let b = self.linear(&format!("{at}.b"), x, [width, width], false)?;
        let c = self.linear(&format!("{at}.c"), x, [width, width], false)?;
        let x = self.linear(&format!("{at}.x"), x, [width, width], false)?;
        let gated = self.graph.same(&format!("{at}.gated"), product, &[b, x]);
        let weight = self.weight(&format!("{at}.taps"), &[taps, width])?;
        let carried = self.graph.carried(&format!("{at}.carried"), Shape::matrix(taps - 1, width));
        let mixed = self.graph.same(&format!("{at}.convolved"), Op::ShortConv, &[gated, weight, carried]);
        let opened = self.graph.same(&format!("{at}.opened"), product, &[c, mixed]);
        self.linear(&format!("{at}.out"), opened, [width, width], false)
    }

    /// Columns of `x`, each convolved with taps of its own, and activated.
    pub(super) fn convolved(
        &mut self,
        name: &str,
        x: ValueId,
        [taps, width]: [usize; 2],
        biased: bool,
        act: Act,
    ) -> Result<ValueId> {
        let weight = self.weight(&format!("{name}.taps"), &[taps, width])?;
        let carried = self.graph.carried(&format!("{name}.carried"), Shape::matrix(taps - 1, width));
        let mut operands = vec![x, weight, carried];
        if biased {
            operands.push(self.weight(&format!("{name}.taps.bias"), &[width])?);
        }
        let mixed = self.graph.same(&format!("{name}.convolved"), Op::ShortConv, &operands);
        Ok(self.graph.same(&format!("{name}.activated"), Op::Activate { act }, &[mixed]))
    }

    /// The state of all positions, after the heads `x` of this step are written to it, [spread](Assembly::spread).
    pub(super) fn kept(&mut self, name: &str, x: ValueId, span: Span, inner: [usize; 2]) -> ValueId {
        let x = self.spread(name, x, span, &inner[1..]);
        self.stored(name, x, span, inner)
    }

    /// The state of all positions, after the heads `x` of this step are written to it as they are.
    fn stored(&mut self, name: &str, x: ValueId, span: Span, inner: [usize; 2]) -> ValueId {
        let group = self.graph.group(span);
        let state = self.graph.state(name, &inner, self.state, group);
        self.graph.write(x, state);
        state
    }

    /// `flat` as heads.
    pub(super) fn as_heads(&mut self, name: &str, flat: ValueId, sizes: [usize; 2]) -> ValueId {
        self.graph.shaped(&format!("{name}.heads"), Op::Reshape, &[flat], &sizes)
    }

    /// The projection of queries, keys or values to `size` numbers.
    fn projected(&mut self, name: &str, rows: AttentionRows, size: usize, bias: bool) -> Result<ValueId> {
        let AttentionRows { x, width, adapters } = rows;
        self.adapted(name, x, [width, size], (bias, adapters))
    }

    /// Queries or keys, of a projection: as heads, with their norm and their rotation.
    fn directed(
        &mut self,
        name: &str,
        attend: &AttentionFacts,
        mut x: ValueId,
        heads: usize,
    ) -> Result<ValueId> {
        let size = attend.head_size;
        let of = attend.qk_norm.map(|norm| norm.of);
        if of == Some(QkNorm::Rows) {
            x = self.qk_norm(name, attend, x, heads * size)?;
        }
        x = self.as_heads(name, x, [heads, size]);
        if of == Some(QkNorm::Heads) {
            x = self.qk_norm(name, attend, x, size)?;
        }
        if let Some(rope) = &attend.rope {
            x = self.rotate(&format!("{name}.rotated"), rope, x)?;
        }
        if of == Some(QkNorm::RotatedHeads) {
            x = self.qk_norm(name, attend, x, size)?;
        }
        Ok(x)
    }

    /// The norm of queries or keys over `size` values at once.
    fn qk_norm(&mut self, name: &str, attend: &AttentionFacts, x: ValueId, size: usize) -> Result<ValueId> {
        let normed = format!("{name}.normed");
        match attend.qk_norm {
            None => Ok(x),
            Some(QkNormFacts { weight: true, epsilon, .. }) => {
                self.rms_norm(&normed, &format!("{name}.norm"), x, size, epsilon)
            }
            Some(QkNormFacts { weight: false, epsilon, .. }) => {
                Ok(self.graph.same(&normed, Op::Norm { epsilon }, &[x]))
            }
        }
    }

    pub(super) fn rotate(&mut self, name: &str, rope: &Rope, x: ValueId) -> Result<ValueId> {
        let op = Op::Rope { pairing: rope.pairing, factor: rope.factor };
        match (self.axes, &rope.axes) {
            (Some(positions), Some(axes)) => {
                let weight = format!("{}.axes", rope.weight);
                let frequencies = self.weight(&weight, &[rope.rotated / 2 * axes.count()])?;
                Ok(self.graph.same(name, op, &[x, frequencies, positions]))
            }
            // The positions of a text are equal along all axes.
            (None, _) | (_, None) => {
                let frequencies = self.weight(&rope.weight, &[rope.rotated / 2])?;
                Ok(self.graph.same(name, op, &[x, frequencies]))
            }
        }
    }
}
