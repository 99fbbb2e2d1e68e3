//! Opens a model on disk: container, facts and weights.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use girih_file::{Container, ContainerKind, projector_files, quote, read_required};
use girih_graph::{Graph, Key, OutputKind};
use girih_tensor::{DType, Error, ErrorKind, Result};
use serde_json::Value as Json;

use crate::adapter::AdapterFiles;
use crate::adapter_config::refused;
use crate::adapter_stack::{AdapterStack, lora_name};
use crate::arch::{self, Arch, ArchOptions, Facts, HiddenState, ModelConfig, Suggestion};
use crate::assemble::{self, GraphOptions};
use crate::draft_files::DraftFiles;
use crate::generation::GenerationConfig;
use crate::json::parse_json;
use crate::limits::ModelLimits;
use crate::lone_weight::LoneWeight;
use crate::made_weight::MadeWeight;
use crate::merged_weight::MergedWeight;
use crate::mlx_config;
use crate::modules::{self, SentenceFacts};
use crate::quantized_weight::{QuantizationError, QuantizedWeight};
use crate::stored_format::{fitting_format, is_exact};
use crate::tile_shapes;
use crate::tower_files::TowerFiles;
use crate::weights::ModelWeights;

/// An opened and checked model; its weights are read on demand.
#[derive(Debug)]
pub struct ModelFiles {
    /// Its parameters.
    pub facts: Facts,
    /// Its weights, read on demand.
    pub weights: ModelWeights,
    /// The sampling settings that it ships with, if any.
    pub generation: Option<GenerationConfig>,
    arch: Arch,
    ignored_keys: Vec<String>,
    /// The keys that a caller allowed.
    allow_keys: Vec<String>,
    /// Whether its files may describe an image tower.
    describes_tower: bool,
    folder: PathBuf,
    /// Where it was opened; `None` if it is part of the program.
    path: Option<PathBuf>,
    embedded: Option<Embedded>,
    adapters: Arc<[AdapterFiles]>,
}

impl ModelFiles {
    /// Opens the model at `path`: a folder, a `.safetensors`, a `.gguf` or a `.q4nx`.
    ///
    /// # Errors
    /// When the files are malformed, the architecture is unknown, the weights are not those of
    /// the architecture, or a key that girih does not read may change the model.
    pub fn open(path: &Path, options: impl Into<ArchOptions>, limits: &ModelLimits) -> Result<ModelFiles> {
        let container = Container::open(path, &limits.file)?;
        let folder = if path.is_dir() { path } else { path.parent().unwrap_or(Path::new(".")) };
        let mut config = match container.kind() {
            ContainerKind::Gguf => None,
            ContainerKind::Safetensors | ContainerKind::Iebin | ContainerKind::Q4nx => {
                Some(read_json(folder, "config.json", limits)?)
            }
        };
        let container = match &mut config {
            Some(config) => mlx_config::revealed(container, config)?,
            None => container,
        };
        let generation = match container.kind() {
            ContainerKind::Gguf => None,
            ContainerKind::Safetensors | ContainerKind::Iebin | ContainerKind::Q4nx => {
                GenerationConfig::read(folder, limits)?
            }
        };
        let options = options.into();
        let allow_keys = options.allow_keys.clone();
        let Interpreted { mut facts, weights, arch, ignored_keys } =
            interpret(container, config.as_ref(), options, limits)?;
        if arch.pooling.is_some() && config.is_some() {
            // The files of the model's author count before the architecture's default.
            if let Some(SentenceFacts { pooling, max_tokens }) = modules::read(folder, limits)? {
                facts.pooling = Some(pooling);
                let context = facts.sizes.context;
                facts.sizes.context = max_tokens.map_or(context, |max| max.min(context));
            }
        }
        Ok(ModelFiles {
            facts,
            weights,
            generation,
            arch,
            ignored_keys,
            allow_keys,
            describes_tower: config.is_none_or(|config| config.get("vision_config").is_some()),
            folder: folder.to_owned(),
            path: Some(path.to_owned()),
            embedded: None,
            adapters: Arc::default(),
        })
    }

    /// Opens the model's layer that predicts the token after the next one.
    ///
    /// # Errors
    /// Of the kind [`ErrorKind::Refused`] when girih knows no such layer of this architecture, or the files have none;
    /// when they are malformed.
    pub fn draft(&self, limits: &ModelLimits) -> Result<DraftFiles> {
        let Some(path) = &self.path else {
            let sentence = "a model that is part of the program has no layer that predicts further tokens";
            return Err(Error::with_kind(ErrorKind::Refused, sentence));
        };
        let container = Container::open(path, &limits.file)?;
        let config = match container.kind() {
            ContainerKind::Gguf => None,
            ContainerKind::Safetensors | ContainerKind::Iebin | ContainerKind::Q4nx => {
                Some(read_json(&self.folder, "config.json", limits)?)
            }
        };
        DraftFiles::open(container, config.as_ref(), (&self.arch, self.facts.layers.len()), limits)
    }

    /// Opens an adapter of the model: a folder of PEFT or a GGUF. Either suits a model of both formats.
    ///
    /// # Errors
    /// Of the kind [`ErrorKind::Refused`] when it changes the model in a way that girih cannot; others when its files
    /// are malformed or are not those of an adapter of this model.
    pub fn open_adapter(&self, path: &Path, limits: &ModelLimits) -> Result<AdapterFiles> {
        if self.facts.is_encoder() {
            let sentence = format!(
                "models of architecture {} are encoders, which run without adapters",
                self.facts.name
            );
            return Err(refused(sentence));
        }
        if self.weights.shares_weights() {
            let sentence = format!("layers of {} share weights, which girih does not adapt", self.facts.name);
            return Err(refused(sentence));
        }
        AdapterFiles::open(path, (&self.arch, &self.facts), limits)
    }

    /// Puts adapters beside the model, for which it has none yet. Its graphs then have the input
    /// [`InputSpec::ADAPTERS`](girih_graph::InputSpec::ADAPTERS), a number for each adapter.
    ///
    /// # Errors
    /// Of the kind [`ErrorKind::Refused`] when there are too many, or one changes a weight that girih cannot adapt; others when the
    /// matrices of one have other shapes than the model needs.
    pub fn add_adapters(&mut self, adapters: Vec<AdapterFiles>, limits: &ModelLimits) -> Result<()> {
        if adapters.len() > limits.adapters {
            let sentence =
                format!("{} adapters were given; at most {} are possible", adapters.len(), limits.adapters);
            return Err(Error::with_kind(ErrorKind::Refused, sentence));
        }
        if let Some(tensor) = adapters.iter().find_map(|adapter| adapter.replaced().next()) {
            return Err(refused(format!(
                "an adapter replaces {} ('modules_to_save'), which requests cannot choose; write a model of it with 'girih \
                 merge'",
                quote(tensor)
            )));
        }
        let adapters: Arc<[AdapterFiles]> = adapters.into();
        let names: BTreeSet<&str> = adapters.iter().flat_map(AdapterFiles::weights).collect();
        let mut stacks = Vec::with_capacity(2 * names.len());
        for name in names {
            let Some((_, shape)) = self.weights.info(name) else {
                return Err(refused(format!("an adapter changes '{name}', which the model does not have")));
            };
            let [a, b] = AdapterStack::both(&adapters, name, [shape.rows(), shape.columns()])?;
            let both: [(String, Box<dyn MadeWeight>); 2] =
                [(lora_name(name, "a"), Box::new(a)), (lora_name(name, "b"), Box::new(b))];
            stacks.extend(both);
        }
        self.weights.add(stacks, adapters.len());
        self.adapters = adapters;
        let key = Key { rows: 1, sequences: 1, context: 1, output_rows: 1, output: OutputKind::Hidden };
        self.graph(key, DType::F32).map(|_| ())
    }

    /// Puts the only adapter into the weights that it changes, which are then in f32; no adapter is beside the model any more.
    ///
    /// # Errors
    /// When there are no adapters or several, or a weight is stored in blocks of several rows.
    pub fn merge_adapter(&mut self) -> Result<()> {
        let [adapter] = &*self.adapters else {
            return Err(refused(format!("{} adapters were given; one can be merged", self.adapters.len())));
        };
        let names: Vec<String> = adapter.weights().map(str::to_owned).collect();
        let made: Vec<String> =
            names.iter().flat_map(|name| ["a", "b"].map(|side| lora_name(name, side))).collect();
        let taken = self.weights.take_adapters(&made, &names);
        let merged = taken.into_iter().map(|(name, base)| {
            let merged: Box<dyn MadeWeight> = Box::new(MergedWeight::of(base, &name, &self.adapters)?);
            Ok((name, merged))
        });
        let merged = merged.collect::<Result<Vec<_>>>()?;
        self.weights.add(merged, 0);
        self.adapters = Arc::default();
        Ok(())
    }

    /// Quantizes matrices in floats to Q8_0 while they are read, as `girih quantize --type q8_0` writes them: rows that are no
    /// whole blocks become F16, and matrices that stay exact become F32. The image tower and draft layers are unchanged. After an
    /// error the model must not be used.
    ///
    /// # Errors
    /// Of the kind [`ErrorKind::Refused`] when another format than Q8_0 is asked for, the model has adapters already, or none
    /// of its matrices is in floats.
    pub fn quantize(&mut self, dtype: DType) -> Result<()> {
        if dtype != DType::Q8_0 {
            return Err(refused(format!(
                "weights were to be quantized to {dtype} at load; only q8_0 is possible, and 'girih quantize' writes other formats"
            )));
        }
        if !self.adapters.is_empty() {
            return Err(refused("weights are quantized before adapters are added".to_owned()));
        }
        let plan = |name: &str| -> Option<(String, DType)> {
            let (from, shape) = self.weights.info(name)?;
            let is_matrix = shape.extents().len() > 1 && !self.weights.is_computed(name);
            let to = match is_exact(&self.weights, name) {
                true => DType::F32,
                false => fitting_format(dtype, shape.columns()),
            };
            (is_matrix && from.tile() == (1, 1) && from != to).then(|| (name.to_owned(), to))
        };
        let planned: Vec<(String, DType)> = self.weights.names().filter_map(plan).collect();
        if planned.iter().all(|(_, to)| *to != dtype) {
            return Err(refused(format!(
                "no matrix of the model is stored in floats with rows that fill blocks of {dtype}, so none is quantized; \
                 use --pack off"
            )));
        }
        for (name, to) in planned {
            let weights = self.weights.take(&name).expect("it is one of the weights");
            let stored = Box::new(LoneWeight { weights, name: name.clone() });
            self.weights.add_quantized(&name, QuantizedWeight::of(stored, &name, to)?);
        }
        Ok(())
    }

    /// The error of the matrices that [`ModelFiles::quantize`] changed and that were read since; `None` if it changed none.
    pub fn quantization_error(&self) -> Option<QuantizationError> {
        let mut changed =
            self.weights.quantized().filter(|(_, weight)| weight.dtype != DType::F32).peekable();
        changed.peek()?;
        let read = changed.filter_map(|(name, weight)| Some((name, weight.squares()?)));
        Some(QuantizationError::of(DType::Q8_0, read))
    }

    /// The adapters beside the model, in the order of the input's numbers.
    pub fn adapters(&self) -> &[AdapterFiles] {
        &self.adapters
    }

    /// Whether the model may have an image tower: girih knows one of its architecture, and its `config.json`, if it has
    /// one, describes it.
    pub fn may_have_tower(&self) -> bool {
        self.arch.image_tower.is_some() && self.describes_tower
    }

    /// Opens the model's image tower: that of the projector file `projector`, if one is given; else that in the model's own
    /// files, or for a GGUF the one projector file beside it.
    ///
    /// # Errors
    /// Of the kind [`ErrorKind::Refused`] when girih knows no tower of this architecture, or the files have none; when
    /// they are malformed.
    pub fn tower(&self, projector: Option<&Path>, limits: &ModelLimits) -> Result<TowerFiles> {
        let refused = |sentence: String| Err(Error::with_kind(ErrorKind::Refused, sentence));
        let name = &self.facts.name;
        let (Some(tower), Some(path)) = (&self.arch.image_tower, &self.path) else {
            return refused(format!("a model of architecture {name} reads no images; use one that does"));
        };
        let text = (tower, &self.facts);
        let is_gguf = self.weights.container().kind() == ContainerKind::Gguf;
        if projector.is_none() && !is_gguf {
            if !self.describes_tower {
                return refused(
                    "the model's config.json has no 'vision_config', so it reads no images".to_owned(),
                );
            }
            let config = read_json(&self.folder, "config.json", limits)?;
            let container = Container::open(path, &limits.file)?;
            return TowerFiles::open(container, Some(&config), text, &self.allow_keys, limits);
        }
        let file = projector.map_or_else(|| only_projector(&self.folder), |file| Ok(file.to_owned()))?;
        let opened = Container::open(&file, &limits.file)
            .and_then(|container| TowerFiles::open(container, None, text, &self.allow_keys, limits));
        opened.map_err(|error| error.of(file.display()))
    }

    /// The name of the value of the model's graph with [`GraphOptions::hidden_rows`] that holds these hidden states.
    pub fn hidden_name(&self, state: HiddenState) -> String {
        assemble::hidden_name(&self.facts, state)
    }

    /// Suggests a description for the model in a folder, which no description needs to match.
    ///
    /// # Errors
    /// When the files are malformed or those of a GGUF, or `config.json` does not name the model's architecture.
    pub fn suggest_arch(folder: &Path, limits: &ModelLimits) -> Result<Suggestion> {
        let container = Container::open(folder, &limits.file)?;
        if container.kind() == ContainerKind::Gguf {
            let sentence = "is a GGUF; a description is suggested from the folder with its 'config.json'";
            return Err(Error::new(sentence).of(folder.display()));
        }
        let config = read_json(folder, "config.json", limits)?;
        arch::suggest(&config, container.tensors().keys().map(String::as_str))
    }

    /// Opens a model whose files are part of the program.
    ///
    /// # Errors
    /// Those of [`ModelFiles::open`].
    pub fn open_embedded(
        files: &Embedded,
        options: impl Into<ArchOptions>,
        limits: &ModelLimits,
    ) -> Result<ModelFiles> {
        let container =
            Container::memory(ContainerKind::Safetensors, files.name, files.weights, &limits.file)?;
        let config: Json = parse_json(files.config.as_bytes())?;
        let generation = Some(GenerationConfig::parse(files.generation.as_bytes())?);
        let Interpreted { facts, weights, arch, ignored_keys } =
            interpret(container, Some(&config), options.into(), limits)?;
        let (folder, path, embedded) = (PathBuf::from(files.name), None, Some(*files));
        Ok(ModelFiles {
            facts,
            weights,
            generation,
            arch,
            ignored_keys,
            allow_keys: Vec::new(),
            describes_tower: false,
            folder,
            path,
            embedded,
            adapters: Arc::default(),
        })
    }

    /// The description of the model's architecture.
    pub fn arch(&self) -> &Arch {
        &self.arch
    }

    /// The keys of the model that may change it and were ignored, because
    /// [`ArchOptions::allow_keys`] names them.
    pub fn ignored_keys(&self) -> &[String] {
        &self.ignored_keys
    }

    /// The files of a model that is part of the program; it has no folder.
    pub fn embedded(&self) -> Option<&Embedded> {
        self.embedded.as_ref()
    }

    /// The folder that holds the model's files.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The model's graph for steps up to `key`. For tokens only, `options` may be the type in
    /// which state is stored.
    ///
    /// # Errors
    /// When a weight's shape contradicts the facts, or the model has no output of
    /// the key's kind.
    pub fn graph(&self, key: Key, options: impl Into<GraphOptions>) -> Result<Graph> {
        assemble::graph(&self.facts, &self.weights, key, options.into())
    }

    /// As [`ModelFiles::graph`], with only the first `layers` layers before the head, to time
    /// a part of the model.
    ///
    /// # Errors
    /// As [`ModelFiles::graph`].
    pub fn graph_of_layers(&self, layers: usize, key: Key, state: DType) -> Result<Graph> {
        let mut facts = self.facts.clone();
        facts.layers.truncate(layers);
        assemble::graph(&facts, &self.weights, key, state.into())
    }
}

/// The files of a model that is part of the program.
#[derive(Clone, Copy, Debug)]
pub struct Embedded {
    /// The name on the command line.
    pub name: &'static str,
    /// `model.safetensors`.
    pub weights: &'static [u8],
    /// `config.json`.
    pub config: &'static str,
    /// `generation_config.json`.
    pub generation: &'static str,
    /// `tokenizer.json`.
    pub tokenizer: &'static str,
}

/// What a container and its `config.json` describe.
pub(crate) struct Interpreted {
    pub facts: Facts,
    pub weights: ModelWeights,
    pub arch: Arch,
    pub ignored_keys: Vec<String>,
}

/// Finds the architecture, facts and weights of a container.
pub(crate) fn interpret(
    container: Container,
    config: Option<&Json>,
    options: ArchOptions,
    limits: &ModelLimits,
) -> Result<Interpreted> {
    let source = config.map_or(ModelConfig::Gguf(container.metadata()), ModelConfig::Hf);
    let known = arch::known(&options.architectures)?;
    let arch = arch::find(&known, &source)?.clone();
    arch::check_refused(&arch, &source, &options.allow_keys)?;
    let layers = source.layers(&arch, limits)?;
    let kinds = arch::layer_kinds(&arch, &source, layers)?;
    let blocks = arch::block_places(&arch, &source, &kinds)?;
    tile_shapes::check_family(&arch, &container)?;
    let mut weights = ModelWeights::resolve(&arch, container, &kinds, &blocks)?;
    // The header, which may hold a vocabulary, has moved with the container.
    let source = config.map_or(ModelConfig::Gguf(weights.container().metadata()), ModelConfig::Hf);
    let mut facts = arch::fill(&arch, &source, &kinds, &weights, limits)?;
    let ignored_keys = arch::check_keys(&arch, &source, &facts, &options.allow_keys)?;
    tile_shapes::adjust_facts(&arch, &mut facts, &weights)?;
    weights.complete(&arch, &facts)?;
    tile_shapes::give_shapes(&arch, &facts, &mut weights)?;
    Ok(Interpreted { facts, weights, arch, ignored_keys })
}

/// The only projector file beside a GGUF.
fn only_projector(folder: &Path) -> Result<PathBuf> {
    let refused = |sentence| Err(Error::with_kind(ErrorKind::Refused, sentence));
    match &projector_files(folder)?[..] {
        [only] => Ok(only.clone()),
        [] => refused(
            "no projector file 'mmproj-….gguf', which has the image tower, lies beside the model; give one with --mmproj"
                .to_owned(),
        ),
        [first, others @ ..] => {
            let name = first.file_name().unwrap_or_default().display();
            let count = others.len();
            refused(format!("{name} and {count} more projector files lie beside the model; choose one with --mmproj"))
        }
    }
}

/// Reads a small JSON file of the model in `folder`.
fn read_json(folder: &Path, name: &str, limits: &ModelLimits) -> Result<Json> {
    let text = read_required(folder, name, limits.file.json_bytes)?;
    parse_json(&text).map_err(|error| error.of(folder.join(name).display()))
}
