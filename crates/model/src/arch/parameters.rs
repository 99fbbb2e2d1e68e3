//! The parameters of a description: each has a field, from which `fill` reads it, and a value in facts. This is
//! the one list by which keys are recognized, documented and written.

use girih_graph::{RouterScore, Span};

use super::delta_facts::DeltaRuleFacts;
use super::delta_schema::DeltaRuleSchema;
use super::facts::{AttentionFacts, Facts, Ffn, LayerFacts, Mixer, Rope};
use super::schema::{
    Arch, BesideSchema, DenseSchema, EmbedScale, ExpertsSchema, FfnSchema, Field, LayerSchema, LayersSchema,
    LimitSchema, MixerSchema, SpanSchema, SsmSchema,
};
use super::tower_facts::GroupTimes;
use super::tower_schema::MutualRule;

/// One parameter.
#[derive(Debug)]
pub struct ArchParameter<'a> {
    /// Where the description has it, such as `mixer.heads`; below `layer.KIND` if kinds of layers have
    /// different fields for it.
    pub name: String,
    /// The field from which it is read.
    pub field: &'a Field,
    sources: Vec<FactSource<'a>>,
}

/// A value of a parameter in facts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum FactValue {
    /// A size.
    Size(usize),
    /// Another number.
    Number(f32),
    /// A word of configurations.
    Word(&'static str),
    /// True or false.
    Flag(bool),
}

/// The facts that a parameter states.
#[derive(Clone, Copy, Debug)]
enum FactSource<'a> {
    /// One of the model.
    Model(fn(&Facts) -> Option<FactValue>),
    /// One of each layer of a kind.
    Layers(&'a str, fn(&LayerFacts) -> Option<FactValue>),
    /// One of a table of rotary position embedding.
    Table(&'a str, fn(&Rope) -> Option<FactValue>),
}

/// A field of the model's description, and its value in facts.
type OfModel<'a> = (&'static str, Option<&'a Field>, fn(&Facts) -> Option<FactValue>);

/// The value of a parameter in a layer.
type LayerFact = fn(&LayerFacts) -> Option<FactValue>;

/// A field of a layer's description, and its value in a layer.
type OfLayer<'a> = (&'static str, Option<&'a Field>, LayerFact);

/// A field of a table of rotations, and its value in the rotation of a layer.
type OfTable<'a> = (&'static str, Option<&'a Field>, fn(&Rope) -> Option<FactValue>);

impl ArchParameter<'_> {
    /// The values in facts, those of layers with the layer's index. A parameter that follows from several
    /// facts, such as the period of layers, has none.
    pub fn values(&self, facts: &Facts) -> Vec<(Option<usize>, FactValue)> {
        let mut values = Vec::new();
        let layers = || facts.layers.iter().enumerate();
        for source in &self.sources {
            match *source {
                FactSource::Model(of) => values.extend(of(facts).map(|value| (None, value))),
                FactSource::Layers(kind, of) => values.extend(
                    layers()
                        .filter(|(_, layer)| layer.kind == kind)
                        .filter_map(|(index, layer)| Some((Some(index), of(layer)?))),
                ),
                FactSource::Table(table, of) => values.extend(
                    layers()
                        .filter_map(|(_, layer)| rope(layer))
                        .filter(|rope| rope.table == table)
                        .filter_map(|rope| Some((None, of(rope)?))),
                ),
            }
        }
        values
    }
}

impl Arch {
    /// Its parameters.
    pub fn parameters(&self) -> Vec<ArchParameter<'_>> {
        let mut list: Vec<ArchParameter<'_>> = Vec::new();
        let sizes = &self.sizes;
        let embed_scale = match &self.embed.scale {
            Some(EmbedScale::Stated(field)) => Some(field),
            Some(EmbedScale::Derived(_)) | None => None,
        };
        let of_model: [OfModel<'_>; 11] = [
            ("sizes.width", Some(&sizes.width), |facts| Some(FactValue::Size(facts.sizes.width))),
            ("sizes.layers", Some(&sizes.layers), |facts| Some(FactValue::Size(facts.layers.len()))),
            ("sizes.drafting", sizes.drafting.as_ref(), |_| None),
            // That of a tower follows from its image.
            ("sizes.context", Some(&sizes.context).filter(|_| self.tower.is_none()), |facts| {
                Some(FactValue::Size(facts.sizes.context))
            }),
            ("sizes.vocabulary", sizes.vocabulary.as_ref(), |facts| {
                Some(FactValue::Size(facts.sizes.vocabulary))
            }),
            ("embed.token_type_count", self.embed.token_type_count.as_ref(), |facts| {
                facts.embed.token_types.map(FactValue::Size)
            }),
            ("embed.scale_if", self.embed.scale_if.as_ref(), |facts| {
                Some(FactValue::Flag(facts.embed.scale.is_some()))
            }),
            ("embed.scale", embed_scale, |facts| Some(FactValue::Number(facts.embed.scale?))),
            ("embed.per_layer.size", self.embed.per_layer.as_ref().map(|own| &own.size), |facts| {
                Some(FactValue::Size(facts.layers.first()?.input?.size))
            }),
            (
                "embed.per_layer.vocabulary",
                self.embed.per_layer.as_ref().and_then(|own| own.vocabulary.as_ref()),
                |facts| Some(FactValue::Size(facts.layers.first()?.input?.vocabulary)),
            ),
            ("norms.epsilon", Some(&self.norms.epsilon), |facts| {
                Some(FactValue::Number(facts.head?.norm.epsilon))
            }),
        ];
        let of_model = of_model.into_iter().chain(of_layers(&self.layers));
        for (name, field, of) in
            of_model.chain(self.of_results()).chain(self.of_tower()).chain(self.of_image_prompts())
        {
            add(&mut list, name, field, FactSource::Model(of), "");
        }
        for (kind, layer) in &self.layer {
            for (name, field, of) in of_layer(layer) {
                add(&mut list, name, field, FactSource::Layers(kind, of), kind);
            }
        }
        for (table, rope) in &self.rope {
            let original = rope.scaling.as_ref().and_then(|scaling| scaling.original.as_ref());
            let of_table: [OfTable<'_>; 5] = [
                ("base", Some(&rope.base), |rope| Some(FactValue::Number(rope.base))),
                ("rotated", rope.rotated.as_ref(), |rope| Some(FactValue::Size(rope.rotated))),
                // Others follow from them.
                ("share", rope.share.as_ref(), |_| None),
                // The pairing follows from it.
                ("neighbours_if", rope.neighbours_if.as_ref(), |_| None),
                ("scaling.original", original, |_| None),
            ];
            for (name, field, of) in of_table {
                add(&mut list, &format!("rope.{table}.{name}"), field, FactSource::Table(table, of), "");
            }
        }
        list
    }

    /// The parameters of an image tower, and of what a text model does with its rows.
    fn of_tower(&self) -> [OfModel<'_>; 13] {
        let tower = self.tower.as_ref();
        let projector = tower.map(|tower| &tower.projector);
        [
            ("image_layers.count", self.image_layers.as_ref().map(|layers| &layers.count), |facts| {
                Some(FactValue::Size(facts.image_layers))
            }),
            ("tower.image", tower.and_then(|tower| tower.image.as_ref()), |facts| {
                Some(FactValue::Size(facts.tower.as_ref()?.image?))
            }),
            ("tower.patch", tower.map(|tower| &tower.patch), |facts| {
                let tower = facts.tower.as_ref()?;
                Some(FactValue::Size(tower.patch / tower.merged))
            }),
            ("tower.merged", tower.and_then(|tower| tower.merged.as_ref()), |facts| {
                Some(FactValue::Size(facts.tower.as_ref()?.merged))
            }),
            ("tower.channels", tower.map(|tower| &tower.channels), |facts| {
                Some(FactValue::Size(facts.tower.as_ref()?.channels))
            }),
            ("tower.tiles.edge", tower.and_then(|tower| Some(&tower.tiles.as_ref()?.edge)), |facts| {
                Some(FactValue::Size(facts.tower.as_ref()?.tiled_edge?))
            }),
            ("tower.frames", tower.and_then(|tower| tower.frames.as_ref()), |facts| {
                Some(FactValue::Size(facts.tower.as_ref()?.frames))
            }),
            // In config.json, it is stated in pixels.
            ("tower.window", tower.and_then(|tower| tower.window.as_ref()), |facts| {
                let tower = facts.tower.as_ref()?;
                Some(FactValue::Size(tower.window? * tower.projector.cell * tower.patch))
            }),
            ("tower.projector.tokens", projector.and_then(|projector| projector.tokens.as_ref()), |facts| {
                Some(FactValue::Size(facts.tower.as_ref()?.max_rows()))
            }),
            ("tower.projector.cell", projector.map(|projector| &projector.cell), |facts| {
                Some(FactValue::Size(facts.tower.as_ref()?.projector.cell))
            }),
            ("tower.projector.width", projector.map(|projector| &projector.width), |facts| {
                Some(FactValue::Size(facts.tower.as_ref()?.projector.width))
            }),
            (
                "tower.projector.epsilon",
                projector.and_then(|projector| projector.epsilon.as_ref()),
                |facts| Some(FactValue::Number(facts.tower.as_ref()?.projector.norm?.epsilon)),
            ),
            (
                "tower.projector.standardized_if",
                projector.and_then(|projector| projector.standardized_if.as_ref()),
                |facts| Some(FactValue::Flag(facts.tower.as_ref()?.projector.standardized)),
            ),
        ]
    }

    /// The parameters of the tokens that stand for images and videos, and of bounds.
    fn of_image_prompts(&self) -> [OfModel<'_>; 8] {
        let tower = self.tower.as_ref();
        let prompt = tower.map(|tower| &tower.prompt);
        [
            // The tokenizer of a GGUF has them.
            ("tower.prompt.begin", prompt.and_then(|prompt| prompt.begin.as_ref()), |_| None),
            ("tower.prompt.row", prompt.map(|prompt| &prompt.row), |_| None),
            ("tower.bounds.if", tower.and_then(|tower| Some(&tower.bounds.as_ref()?.are_there)), |_| None),
            ("tower.prompt.layer_input", prompt.and_then(|prompt| prompt.layer_input.as_ref()), |_| None),
            (
                "tower.prompt.mutual",
                prompt.and_then(|prompt| match &prompt.mutual {
                    MutualRule::Always(_) => None,
                    MutualRule::If { of, is: _ } => Some(of),
                }),
                |_| None,
            ),
            (
                "tower.video.positions_per_second",
                tower.and_then(|tower| tower.video.positions_per_second.as_ref()),
                |facts| match facts.tower.as_ref()?.group_times {
                    GroupTimes::PerSecond(positions) => Some(FactValue::Size(positions)),
                    GroupTimes::Apart | GroupTimes::Counted => None,
                },
            ),
            ("tower.prompt.video", prompt.and_then(|prompt| prompt.video.as_ref()), |_| None),
            ("tower.prompt.end", prompt.and_then(|prompt| prompt.end.as_ref()), |_| None),
        ]
    }

    /// The parameters of the head, of pooling and of residual streams.
    fn of_results(&self) -> [OfModel<'_>; 8] {
        let head = self.head.as_ref();
        [
            ("head.tied", head.and_then(|head| head.tied.as_ref()), |facts| {
                Some(FactValue::Flag(facts.head?.tied))
            }),
            ("head.scale", head.and_then(|head| head.scale.as_ref()), |facts| {
                Some(FactValue::Number(facts.head?.scale?))
            }),
            ("head.divisor", head.and_then(|head| head.divisor.as_ref()), |facts| {
                Some(FactValue::Number(facts.head?.divisor?))
            }),
            ("head.softcap", head.and_then(|head| head.softcap.as_ref()), |facts| {
                Some(FactValue::Number(facts.head?.softcap?))
            }),
            ("streams.scaled", self.streams.as_ref().map(|streams| &streams.scaled), |facts| {
                Some(FactValue::Flag(facts.streams?.scaled))
            }),
            ("streams.rank", self.streams.as_ref().map(|streams| &streams.rank), |facts| {
                Some(FactValue::Size(facts.streams?.rank))
            }),
            ("assistant.width", self.assistant.as_ref().map(|assistant| &assistant.width), |facts| {
                Some(FactValue::Size(facts.assistant?.width))
            }),
            ("pooling.how", self.pooling.as_ref().map(|pooling| &pooling.how), |_| None),
        ]
    }
}

/// The parameters of the list of layers.
fn of_layers(layers: &LayersSchema) -> [OfModel<'_>; 10] {
    [
        ("layers.period", layers.period.as_ref(), |_| None),
        ("layers.shared_kv", layers.shared_kv.as_ref(), |facts| {
            let attends = facts.layers.iter().filter_map(|layer| layer.mixer.attention());
            Some(FactValue::Size(attends.filter(|attend| attend.values.of_layer.is_some()).count()))
        }),
        // Which layers share weights follows from it.
        ("layers.blocks.count", layers.blocks.as_ref().map(|blocks| &blocks.count), |_| None),
        ("layers.dense.first", layers.dense.first.as_ref(), |_| None),
        ("layers.dense.last", layers.dense.last.as_ref(), |_| None),
        ("layers.dense.step", layers.dense.step.as_ref(), |_| None),
        ("layers.dense.indexed", layers.dense.indexed.as_ref(), |_| None),
        ("layers.dense.others_indexed", layers.dense.others_indexed.as_ref(), |_| None),
        ("layers.dense.listed", layers.dense.listed.as_ref(), |_| None),
        ("layers.dense.unless", layers.dense.unless.as_ref(), |_| None),
    ]
}

/// Adds a source to the parameter of this name and field, or to a new one.
fn add<'a>(
    list: &mut Vec<ArchParameter<'a>>,
    name: &str,
    field: Option<&'a Field>,
    source: FactSource<'a>,
    kind: &str,
) {
    let Some(field) = field else { return };
    let below = format!("layer.{kind}.{name}");
    let is_it = |one: &&mut ArchParameter<'_>| (one.name == name || one.name == below) && one.field == field;
    if let Some(one) = list.iter_mut().find(is_it) {
        return one.sources.push(source);
    }
    let is_taken = list.iter().any(|one| one.name == name);
    let name = if is_taken { below } else { name.to_owned() };
    list.push(ArchParameter { name, field, sources: vec![source] });
}

/// The parameters of a kind of layers.
#[allow(clippy::too_many_lines, reason = "a list")]
fn of_layer(layer: &LayerSchema) -> Vec<OfLayer<'_>> {
    let mut list: Vec<OfLayer<'_>> = vec![("norms.epsilon", Some(&layer.norms.epsilon), |layer| {
        Some(FactValue::Number(layer.norms.norm.epsilon))
    })];
    list.push(("norms.after_epsilon", layer.norms.after_epsilon.as_ref(), |layer| {
        Some(FactValue::Number(layer.norms.after_epsilon?))
    }));
    match &layer.mixer {
        MixerSchema::Attend(attend) => {
            let (window, chunk) = match &attend.span {
                SpanSchema::Window(field) => (Some(field), None),
                SpanSchema::Chunk(field) => (None, Some(field)),
                SpanSchema::Full | SpanSchema::Past | SpanSchema::All | SpanSchema::Mutual => (None, None),
            };
            let (temperature, latent) = (attend.temperature.as_ref(), attend.latent.as_ref());
            let indexer = latent.and_then(|latent| latent.indexer.as_ref());
            list.extend([
                (
                    "mixer.heads",
                    Some(&attend.heads),
                    (|layer| size(layer, |attend| attend.heads)) as fn(&_) -> _,
                ),
                ("mixer.kv_heads", Some(&attend.kv_heads), |layer| size(layer, |attend| attend.kv_heads)),
                ("mixer.head_size", Some(&attend.head_size), |layer| size(layer, |attend| attend.head_size)),
                ("mixer.value_size", attend.value_size.as_ref(), |layer| {
                    size(layer, |attend| attend.value_size.unwrap_or(attend.head_size))
                }),
                ("mixer.value_factor", attend.value_factor.as_ref(), |layer| {
                    Some(FactValue::Number(layer.mixer.attention()?.value_factor?))
                }),
                ("mixer.span.window", window, |layer| match layer.mixer.attention()?.span {
                    Span::Window(window) => Some(FactValue::Size(window as usize)),
                    Span::Full | Span::Past | Span::Chunk(_) | Span::All | Span::Mutual => None,
                }),
                ("mixer.latent.query_rank", latent.map(|latent| &latent.query_rank), |layer| {
                    Some(FactValue::Size(layer.mixer.attention()?.latent?.query_rank?))
                }),
                ("mixer.latent.rank", latent.map(|latent| &latent.rank), |layer| {
                    Some(FactValue::Size(layer.mixer.attention()?.latent?.rank))
                }),
                ("mixer.latent.nope", latent.map(|latent| &latent.nope), |layer| {
                    Some(FactValue::Size(layer.mixer.attention()?.latent?.nope))
                }),
                ("mixer.latent.rope", latent.map(|latent| &latent.rope), |layer| {
                    Some(FactValue::Size(layer.mixer.attention()?.latent?.rope))
                }),
                ("mixer.latent.value_size", latent.map(|latent| &latent.value_size), |layer| {
                    Some(FactValue::Size(layer.mixer.attention()?.latent?.value_size))
                }),
                ("mixer.latent.indexer.heads", indexer.map(|indexer| &indexer.heads), |layer| {
                    Some(FactValue::Size(layer.mixer.attention()?.latent?.indexer?.heads))
                }),
                ("mixer.latent.indexer.size", indexer.map(|indexer| &indexer.size), |layer| {
                    Some(FactValue::Size(layer.mixer.attention()?.latent?.indexer?.size))
                }),
                ("mixer.latent.indexer.best", indexer.map(|indexer| &indexer.best), |layer| {
                    Some(FactValue::Size(layer.mixer.attention()?.latent?.indexer?.best))
                }),
                ("mixer.latent.indexer.epsilon", indexer.map(|indexer| &indexer.epsilon), |_| None),
                ("mixer.latent.indexer.listed", indexer.and_then(|indexer| indexer.listed.as_ref()), |_| {
                    None
                }),
                // It is that of all models of the architecture.
                ("mixer.latent.epsilon", latent.map(|latent| &latent.epsilon), |_| None),
                ("mixer.span_if", attend.span_if.as_ref(), |layer| {
                    Some(FactValue::Flag(layer.mixer.attention()?.span != Span::Full))
                }),
                // Whether layers are rotated follows from them.
                ("mixer.rope_if", attend.rope_if.as_ref(), |layer| {
                    Some(FactValue::Flag(layer.mixer.attention()?.rope.is_some()))
                }),
                ("mixer.rope_if_null", attend.rope_if_null.as_ref(), |_| None),
                ("mixer.rope_unless_null", attend.rope_unless_null.as_ref(), |_| None),
                ("mixer.span.chunk", chunk, |layer| match layer.mixer.attention()?.span {
                    Span::Chunk(length) => Some(FactValue::Size(length as usize)),
                    Span::Full | Span::Past | Span::Window(_) | Span::All | Span::Mutual => None,
                }),
                ("mixer.temperature.if", temperature.and_then(|schema| schema.condition.as_ref()), |layer| {
                    Some(FactValue::Flag(layer.mixer.attention()?.temperature.is_some()))
                }),
                ("mixer.temperature.beta", temperature.map(|schema| &schema.beta), |layer| {
                    Some(FactValue::Number(layer.mixer.attention()?.temperature?.beta))
                }),
                ("mixer.temperature.every", temperature.map(|schema| &schema.every), |layer| {
                    Some(FactValue::Size(layer.mixer.attention()?.temperature?.every as usize))
                }),
                // The number of KV heads follows from it.
                ("mixer.multi_query", attend.multi_query.as_ref(), |_| None),
                // Weights say so.
                ("mixer.values.are_keys_if", attend.values.are_keys_if.as_ref(), |_| None),
                ("mixer.qk_norm_if", attend.qk_norm_if.as_ref(), |_| None),
                ("mixer.gate_if", attend.gate_if.as_ref(), |_| None),
                // It follows from the scale and the size of a head.
                ("mixer.scale_of", attend.scale_of.as_ref(), |_| None),
                ("mixer.scale", attend.scale.as_ref(), |layer| {
                    Some(FactValue::Number(layer.mixer.attention()?.scale))
                }),
                // The bases of the tables follow from it.
                ("mixer.rope_bases", attend.rope_bases.as_ref().map(|bases| &bases.field), |_| None),
                // The scale has it as a factor.
                ("mixer.query_factor", attend.query_factor.as_ref(), |_| None),
                ("mixer.softcap", attend.softcap.as_ref(), |layer| {
                    Some(FactValue::Number(layer.mixer.attention()?.softcap?))
                }),
                ("mixer.input_scale", attend.input_scale.as_ref(), |layer| {
                    Some(FactValue::Number(layer.mixer.attention()?.input_scale?))
                }),
                ("mixer.output_scale", attend.output_scale.as_ref(), |layer| {
                    Some(FactValue::Number(layer.mixer.attention()?.output_scale?))
                }),
            ]);
            list.extend(attend.beside.iter().flat_map(|ssm| of_ssm(ssm)));
        }
        MixerSchema::ShortConv(conv) => {
            list.push(("mixer.taps", Some(&conv.taps), |layer| match &layer.mixer {
                Mixer::ShortConv(conv) => Some(FactValue::Size(conv.taps)),
                Mixer::Attend(_)
                | Mixer::DeltaRule(_)
                | Mixer::Ssm(_)
                | Mixer::AttendAndSsm { .. }
                | Mixer::None => None,
            }))
        }
        MixerSchema::DeltaRule(delta) => list.extend(of_delta_rule(delta)),
        MixerSchema::Ssm(ssm) => list.extend(of_ssm(ssm)),
        MixerSchema::None {} => {}
    }
    // The positions follow from it.
    list.push(("norms.further.if", layer.norms.further.as_ref().map(|further| &further.condition), |_| None));
    list.push(("residual.parallel", layer.residual.parallel.as_ref(), |layer| {
        Some(FactValue::Flag(layer.residual.parallel))
    }));
    list.push(("residual.scale", layer.residual.scale.as_ref(), |layer| {
        Some(FactValue::Number(layer.residual.scale?))
    }));
    list.push(("block.rank", layer.block.as_ref().map(|block| &block.rank), |layer| {
        Some(FactValue::Size(layer.block?.rank))
    }));
    list.push(("block.in_attention", layer.block.as_ref().map(|block| &block.in_attention), |layer| {
        Some(FactValue::Flag(layer.block?.in_attention))
    }));
    match &layer.ffn {
        FfnSchema::Gated(dense) | FfnSchema::Plain(dense) => {
            list.extend(of_dense(dense));
            list.extend(dense.beside.iter().flat_map(|beside| of_beside(beside)));
        }
        FfnSchema::Experts(experts) => {
            list.extend(of_dense(&experts.each));
            list.extend(of_experts(experts));
        }
        FfnSchema::None {} => {}
    }
    list
}

/// The parameters of a gated delta rule.
fn of_delta_rule(schema: &DeltaRuleSchema) -> [OfLayer<'_>; 10] {
    [
        ("mixer.key_heads", Some(&schema.key_heads), |layer| Some(FactValue::Size(delta(layer)?.key_heads))),
        ("mixer.value_heads", Some(&schema.value_heads), |layer| {
            Some(FactValue::Size(delta(layer)?.value_heads))
        }),
        ("mixer.key_size", Some(&schema.key_size), |layer| Some(FactValue::Size(delta(layer)?.key_size))),
        ("mixer.value_size", Some(&schema.value_size), |layer| {
            Some(FactValue::Size(delta(layer)?.value_size))
        }),
        ("mixer.values", schema.values.as_ref(), |layer| Some(FactValue::Size(delta(layer)?.values()))),
        ("mixer.taps", Some(&schema.taps), |layer| Some(FactValue::Size(delta(layer)?.taps))),
        ("mixer.act", Some(&schema.act), |layer| Some(FactValue::Word(delta(layer)?.act.name()))),
        ("mixer.norm_epsilon", schema.norm_epsilon.as_ref(), |layer| {
            Some(FactValue::Number(delta(layer)?.norm_epsilon))
        }),
        ("mixer.doubled", schema.doubled.as_ref(), |layer| Some(FactValue::Flag(delta(layer)?.doubled))),
        ("mixer.rank", schema.rank.as_ref(), |layer| Some(FactValue::Size(delta(layer)?.rank?))),
    ]
}

fn delta(layer: &LayerFacts) -> Option<&DeltaRuleFacts> {
    match &layer.mixer {
        Mixer::DeltaRule(delta) => Some(delta),
        Mixer::Attend(_) | Mixer::ShortConv(_) | Mixer::Ssm(_) | Mixer::AttendAndSsm { .. } | Mixer::None => {
            None
        }
    }
}

/// The parameters of a feed-forward part that all rows pass through.
fn of_dense(dense: &DenseSchema) -> [OfLayer<'_>; 10] {
    let rounded = dense.hf_rounded.as_ref();
    [
        ("ffn.size", Some(&dense.size), |layer| layer.ffn.size().map(FactValue::Size)),
        ("ffn.act", Some(&dense.act), |layer| Some(FactValue::Word(layer.ffn.act_word()?))),
        ("ffn.gate_scale", dense.gate_scale.as_ref(), |layer| match layer.ffn {
            Ffn::Gated { gate_scale, .. } => gate_scale.map(FactValue::Number),
            Ffn::Plain { .. } | Ffn::Experts(_) | Ffn::None => None,
        }),
        ("ffn.output_scale", dense.output_scale.as_ref(), |layer| match layer.ffn {
            Ffn::Gated { output_scale, .. } => output_scale.map(FactValue::Number),
            Ffn::Plain { .. } | Ffn::Experts(_) | Ffn::None => None,
        }),
        // It may be another one in each layer.
        ("ffn.limit", dense.limit.as_ref().map(LimitSchema::field), |_| None),
        // A cutoff follows from it.
        ("ffn.sparsity", dense.sparsity.as_ref(), |_| None),
        // The size follows from them.
        ("ffn.hf_doubled_if", dense.hf_doubled_if.as_ref(), |_| None),
        ("ffn.hf_rounded.if", rounded.map(|rounded| &rounded.condition), |_| None),
        ("ffn.hf_rounded.times", rounded.map(|rounded| &rounded.times), |_| None),
        ("ffn.hf_rounded.multiple", rounded.map(|rounded| &rounded.multiple), |_| None),
    ]
}

/// The parameters of experts beside a dense part.
fn of_beside(beside: &BesideSchema) -> [OfLayer<'_>; 7] {
    let experts = &beside.experts;
    [
        // Weights say so.
        ("ffn.beside.if", Some(&beside.condition), |_| None),
        ("ffn.beside.count", Some(&experts.count), |layer| {
            Some(FactValue::Size(layer.beside.as_ref()?.count))
        }),
        ("ffn.beside.used", Some(&experts.used), |layer| {
            Some(FactValue::Size(layer.beside.as_ref()?.router.used as usize))
        }),
        ("ffn.beside.each.size", Some(&experts.each.size), |layer| {
            Some(FactValue::Size(layer.beside.as_ref()?.size))
        }),
        // That of the dense part.
        ("ffn.beside.each.act", Some(&experts.each.act), |_| None),
        ("ffn.beside.score", Some(&experts.score), |_| None),
        ("ffn.beside.normalized", Some(&experts.normalized), |_| None),
    ]
}

/// The parameters of experts, beside those of each.
fn of_experts(experts: &ExpertsSchema) -> [OfLayer<'_>; 16] {
    let shared = experts.shared.as_ref();
    [
        ("ffn.count", Some(&experts.count), |layer| Some(FactValue::Size(layer.ffn.experts()?.count))),
        ("ffn.used", Some(&experts.used), |layer| {
            Some(FactValue::Size(layer.ffn.experts()?.router.used as usize))
        }),
        // The number that GGUF has for it.
        ("ffn.score", Some(&experts.score), |layer| {
            Some(FactValue::Size(match layer.ffn.experts()?.router.score {
                RouterScore::Softmax => 1,
                RouterScore::Sigmoid => 2,
            }))
        }),
        ("ffn.normalized", Some(&experts.normalized), |layer| {
            Some(FactValue::Flag(layer.ffn.experts()?.router.normalized.is_some()))
        }),
        ("ffn.factor", experts.factor.as_ref(), |layer| {
            Some(FactValue::Number(layer.ffn.experts()?.router.factor?))
        }),
        // The share is twice as large.
        ("ffn.jitter", experts.jitter.as_ref(), |_| None),
        ("ffn.softcap", experts.softcap.as_ref(), |layer| {
            Some(FactValue::Number(layer.ffn.experts()?.router_softcap?))
        }),
        ("ffn.limit", experts.limit.as_ref().map(LimitSchema::field), |layer| {
            Some(FactValue::Number(layer.ffn.experts()?.gate.limit?.bound()))
        }),
        (
            "ffn.shared.limit",
            shared.and_then(|shared| shared.limit.as_ref()).map(LimitSchema::field),
            |layer| Some(FactValue::Number(layer.ffn.experts()?.shared_limit?.bound())),
        ),
        ("ffn.latent", experts.latent.as_ref(), |layer| layer.ffn.experts()?.latent.map(FactValue::Size)),
        ("ffn.groups", experts.groups.as_ref(), |layer| {
            Some(FactValue::Size(layer.ffn.experts()?.router.groups?.count as usize))
        }),
        // Whether there are groups follows from it.
        ("ffn.groups_if", experts.groups_if.as_ref(), |_| None),
        ("ffn.used_groups", experts.used_groups.as_ref(), |layer| {
            Some(FactValue::Size(layer.ffn.experts()?.router.groups?.used as usize))
        }),
        // The facts have the product of both, of which a description names one.
        ("ffn.shared.size", shared.and_then(|shared| shared.size.as_ref()), |layer| {
            layer.ffn.experts()?.shared_ffn.map(FactValue::Size)
        }),
        ("ffn.shared.combined", shared.and_then(|shared| shared.combined.as_ref()), |_| None),
        ("ffn.shared.count", shared.and_then(|shared| shared.count.as_ref()), |layer| {
            let experts = layer.ffn.experts()?;
            Some(FactValue::Size(experts.shared_ffn? / experts.size))
        }),
    ]
}

/// The parameters of Mamba-2.
fn of_ssm(ssm: &SsmSchema) -> Vec<OfLayer<'_>> {
    let mut list: Vec<OfLayer<'_>> = vec![
        ("mixer.ssm.heads", Some(&ssm.heads), |layer| Some(FactValue::Size(layer.mixer.ssm()?.heads))),
        ("mixer.ssm.head_size", ssm.head_size.as_ref(), |layer| {
            Some(FactValue::Size(layer.mixer.ssm()?.head_size))
        }),
        ("mixer.ssm.inner", ssm.inner.as_ref(), |layer| Some(FactValue::Size(layer.mixer.ssm()?.inner()))),
        // The inner size follows from it.
        ("mixer.ssm.expand", ssm.expand.as_ref(), |_| None),
        ("mixer.ssm.groups", Some(&ssm.groups), |layer| Some(FactValue::Size(layer.mixer.ssm()?.groups))),
        ("mixer.ssm.state", Some(&ssm.state), |layer| Some(FactValue::Size(layer.mixer.ssm()?.state))),
        ("mixer.ssm.taps", Some(&ssm.taps), |layer| Some(FactValue::Size(layer.mixer.ssm()?.taps))),
        ("mixer.ssm.act", Some(&ssm.act), |_| None),
        ("mixer.ssm.least", ssm.least.as_ref(), |layer| Some(FactValue::Number(layer.mixer.ssm()?.least))),
        ("mixer.ssm.most", ssm.most.as_ref(), |layer| Some(FactValue::Number(layer.mixer.ssm()?.most?))),
        // Its weight says so.
        ("mixer.ssm.norm_if", ssm.norm_if.as_ref(), |_| None),
        ("mixer.ssm.norm_first", ssm.norm_first.as_ref(), |layer| {
            Some(FactValue::Flag(layer.mixer.ssm()?.norm?.first))
        }),
        ("mixer.ssm.norm_epsilon", ssm.norm_epsilon.as_ref(), |layer| {
            Some(FactValue::Number(layer.mixer.ssm()?.norm?.epsilon))
        }),
        ("mixer.ssm.input_scale", ssm.input_scale.as_ref(), |layer| {
            Some(FactValue::Number(layer.mixer.ssm()?.input_scale?))
        }),
        ("mixer.ssm.output_scale", ssm.output_scale.as_ref(), |layer| {
            Some(FactValue::Number(layer.mixer.ssm()?.output_scale?))
        }),
    ];
    const SCALES: [(&str, LayerFact); 5] = [
        ("mixer.ssm.scales.z", |layer| Some(FactValue::Number(layer.mixer.ssm()?.scales?[0]))),
        ("mixer.ssm.scales.x", |layer| Some(FactValue::Number(layer.mixer.ssm()?.scales?[1]))),
        ("mixer.ssm.scales.b", |layer| Some(FactValue::Number(layer.mixer.ssm()?.scales?[2]))),
        ("mixer.ssm.scales.c", |layer| Some(FactValue::Number(layer.mixer.ssm()?.scales?[3]))),
        ("mixer.ssm.scales.dt", |layer| Some(FactValue::Number(layer.mixer.ssm()?.scales?[4]))),
    ];
    list.extend(ssm.scales.iter().zip(SCALES).map(|(field, (name, of))| (name, Some(field), of)));
    list
}

fn size(layer: &LayerFacts, of: fn(&AttentionFacts) -> usize) -> Option<FactValue> {
    layer.mixer.attention().map(|attend| FactValue::Size(of(attend)))
}

fn rope(layer: &LayerFacts) -> Option<&Rope> {
    layer.mixer.attention()?.rope.as_ref()
}
