//! An assistant: a model that drafts for another one, from its embedding, its hidden states, its keys and its values.

use girih_graph::{InputSpec, Op, ValueId};
use girih_tensor::{DType, Result};

use super::Assembly;
use crate::arch::{AttentionFacts, Facts};
use crate::assistant_parts::{TARGET_TABLE, first_of_kinds};
use crate::one_position;

impl Assembly<'_> {
    /// The rows that an assistant's first layer reads, with the keys and values of all layers. Rows of the assistant's
    /// own hidden states are 0 where there are rows of the model's, and the other way round.
    pub(super) fn assistant_rows(&mut self, target: &Facts) -> Result<ValueId> {
        let (width, of_model) = (self.facts.sizes.width, target.sizes.width);
        let facts = self.facts;
        let tokens = self.graph.input(InputSpec::TOKENS, &[], DType::I32);
        let hidden = self.graph.input(InputSpec::HIDDEN, &[of_model], DType::F32);
        let own = self.graph.input(InputSpec::OWN_HIDDEN, &[width], DType::F32);
        let mut given = Vec::new();
        for (kind, attend) in first_of_kinds(facts)? {
            let size = attend.kv_heads * attend.head_size;
            let mut part = |part: &str| {
                let name = format!("{}.{kind}.{part}", InputSpec::HIDDEN);
                self.graph.input(&name, &[size], DType::F32)
            };
            given.push((kind, attend, [part("keys"), part("values")]));
        }
        for (kind, attend, [keys, values]) in given {
            let heads = [attend.kv_heads, attend.head_size];
            let at = format!("target.{kind}");
            let mut keys = self.as_heads(&format!("{at}.k"), keys, heads);
            if let Some(rope) = &attend.rope {
                keys = self.rotate(&format!("{at}.k.rotated"), rope, keys)?;
            }
            let values = self.as_heads(&format!("{at}.v"), values, heads);
            let both = [
                self.kept(&format!("{at}.keys"), keys, attend.span, heads),
                self.kept(&format!("{at}.values"), values, attend.span, heads),
            ];
            let layers = facts.layers.iter().enumerate().filter(|(_, layer)| layer.kind == kind);
            self.keys_and_values.extend(layers.map(|(index, _)| (index, both)));
        }
        let table = self.weight(TARGET_TABLE, &[target.sizes.vocabulary, of_model])?;
        let mut rows = self.graph.shaped("target.embed.rows", Op::Embed, &[tokens, table], &[of_model]);
        if let Some(factor) = target.embed.scale {
            rows = self.graph.same("target.embed.scaled", Op::Scale { factor }, &[rows]);
        }
        let own = self.linear("draft.out", own, [width, of_model], false)?;
        let hidden = self.graph.same("draft.hidden.rows", Op::Add, &[hidden, own]);
        let rows = self.linear("draft.tokens", rows, [of_model, width], false)?;
        let hidden = self.linear("draft.hidden", hidden, [of_model, width], false)?;
        Ok(self.graph.same("embed", Op::Add, &[rows, hidden]))
    }

    /// Queries of an assistant, rotated by one position more: its rows are those of the position after the newest key.
    pub(super) fn one_position_on(
        &mut self,
        name: &str,
        attend: &AttentionFacts,
        q: ValueId,
    ) -> Result<ValueId> {
        let Some(rope) = attend.rope.as_ref().filter(|_| attend.values.of_model) else { return Ok(q) };
        let (heads, size) = (attend.heads, attend.head_size);
        let turn = self.weight(&one_position::name(rope), &[heads, size, size])?;
        Ok(self.graph.shaped(name, Op::LinearHeads, &[q, turn], &[heads, size]))
    }
}
