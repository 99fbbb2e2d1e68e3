//! An opened model: facts, weights on disk, tokenizer and chat template.

use std::fmt;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use girih_engine::Sampling;
use girih_graph::{Error, ErrorKind, Result};
use girih_model::{AdapterFiles, ModelFiles, ModelLimits, QuantizationError, TowerFiles};
use girih_words::template::{Conversation, Renderer};
use girih_words::{BosEos, Specials, TextOrigin, TextProcessor, TextSpan};

use crate::image::ImageFormat;
use crate::location::ModelLocation;
use crate::open_options::OpenOptions;
#[cfg(feature = "image")]
use crate::picture_preparation::PicturePreparation;

/// An opened model. Its weights stay on disk until it is started; its tokenizer is opened
/// when it is first needed. Clones share the same files.
///
/// ```
/// let model = girih::Model::open("stories260k")?;
/// assert_eq!(model.name(), "stories260k");
/// # Ok::<(), girih::Error>(())
/// ```
#[derive(Clone)]
pub struct Model(Arc<OpenedModel>);

struct OpenedModel {
    name: String,
    location: ModelLocation,
    open_options: OpenOptions,
    files: ModelFiles,
    /// The version of the small files when they were opened.
    companions: String,
    text: OnceLock<Result<TextProcessor>>,
    tower: OnceLock<Result<Arc<TowerFiles>>>,
    /// How pictures become patches.
    #[cfg(feature = "image")]
    preparation: OnceLock<PicturePreparation>,
    renderer: Mutex<Renderer>,
    #[cfg(feature = "grammar")]
    grammars: OnceLock<girih_grammar::GrammarCompiler>,
}

impl fmt::Debug for Model {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Model").field(&self.0.name).finish()
    }
}

impl Model {
    /// Opens a model: a folder, a `.gguf` or `.safetensors` file, or the built-in
    /// `stories260k`.
    ///
    /// ```
    /// let model = girih::Model::open("stories260k")?;
    /// assert!(girih::Model::open("./no-such-folder").is_err());
    /// # Ok::<(), girih::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`](crate::ErrorKind::NotFound) if there is no such model, others if
    /// its files are malformed or not supported.
    pub fn open(name: &str) -> Result<Model> {
        Model::open_with(name, &OpenOptions::default())
    }

    /// As [`Model::open`], and with the feature `hub` also finds ids such as `org/name` among
    /// the downloaded models.
    ///
    /// ```
    /// use girih::{Model, OpenOptions};
    ///
    /// let options = OpenOptions::from_vars(|name| std::env::var(name).ok());
    /// let model = Model::open_with("stories260k", &options)?;
    /// # Ok::<(), girih::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Model::open`].
    pub fn open_with(name: &str, options: &OpenOptions) -> Result<Model> {
        let location = ModelLocation::find(name, options)?;
        // Before they are read: a change meanwhile makes another version.
        let companions = location.companions_version();
        let files = location.files(options)?;
        Ok(Model(Arc::new(OpenedModel {
            companions,
            name: name.to_owned(),
            location,
            renderer: Mutex::new(options.renderer()),
            open_options: options.clone(),
            files,
            text: OnceLock::new(),
            tower: OnceLock::new(),
            #[cfg(feature = "image")]
            preparation: OnceLock::new(),
            #[cfg(feature = "grammar")]
            grammars: OnceLock::new(),
        })))
    }

    /// Whether its name leads to the same files as when it was opened, and none of them has changed. Contents are not read: times and
    /// sizes tell.
    ///
    /// ```
    /// assert!(girih::Model::open("stories260k")?.is_current());
    /// # Ok::<(), girih::Error>(())
    /// ```
    pub fn is_current(&self) -> bool {
        let OpenedModel { name, location, open_options, files, companions, tower, .. } = &*self.0;
        ModelLocation::find(name, open_options).is_ok_and(|found| found == *location)
            && files.weights.container().is_current()
            && !matches!(tower.get(), Some(Ok(tower)) if !tower.weights.container().is_current())
            && files.adapters().iter().all(AdapterFiles::is_current)
            && location.companions_version() == *companions
    }

    /// Opens only the tokenizer and the chat template of a model, which needs no weights.
    ///
    /// ```
    /// use girih::{BosEos, Model, OpenOptions, TextOrigin};
    ///
    /// let text = Model::text_processor_of("stories260k", &OpenOptions::default())?;
    /// let ids = text.tokenizer.encode("a cat", TextOrigin::User, BosEos::Omit)?;
    /// assert!(!ids.is_empty());
    /// # Ok::<(), girih::Error>(())
    /// ```
    ///
    /// # Errors
    /// When there is no tokenizer, or the files are malformed.
    pub fn text_processor_of(name: &str, options: &OpenOptions) -> Result<TextProcessor> {
        Ok(with_template(ModelLocation::find(name, options)?.text_processor()?, options))
    }

    /// The name under which it was opened.
    ///
    /// ```
    /// assert_eq!(girih::Model::open("stories260k")?.name(), "stories260k");
    /// # Ok::<(), girih::Error>(())
    /// ```
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// The names of the adapters beside it.
    ///
    /// ```
    /// assert_eq!(girih::Model::open("stories260k")?.adapters().count(), 0);
    /// # Ok::<(), girih::Error>(())
    /// ```
    pub fn adapters(&self) -> impl ExactSizeIterator<Item = &str> {
        self.0.open_options.adapters.iter().map(|adapter| adapter.name.as_str())
    }

    /// The index of the adapter with this name.
    pub(crate) fn adapter_index(&self, name: &str) -> Result<u32> {
        let index = self.adapters().position(|own| own == name);
        index.map(|index| index as u32).ok_or_else(|| {
            let own: Vec<&str> = self.adapters().collect();
            let has = match &own[..] {
                [] => "the model was opened with none".to_owned(),
                own => format!("the model has {}", own.join(", ")),
            };
            Error::with_kind(ErrorKind::NotFound, format!("there is no adapter '{name}'; {has}"))
        })
    }

    /// Its facts and its weights.
    ///
    /// ```
    /// let model = girih::Model::open("stories260k")?;
    /// assert_eq!(model.files().facts.sizes.vocabulary, 512);
    /// # Ok::<(), girih::Error>(())
    /// ```
    pub fn files(&self) -> &ModelFiles {
        &self.0.files
    }

    /// Its facts and weights alone, unless there are clones of the model.
    ///
    /// ```
    /// let files = girih::Model::open("stories260k")?.into_files().expect("there are no clones");
    /// assert_eq!(files.facts.layers.len(), 5);
    /// # Ok::<(), girih::Error>(())
    /// ```
    #[must_use]
    pub fn into_files(self) -> Option<ModelFiles> {
        Arc::into_inner(self.0).map(|opened| opened.files)
    }

    /// The number of its parameters: the elements of the stored weights that it uses. What girih computes
    /// itself, such as the frequencies of RoPE, is none.
    ///
    /// ```
    /// assert_eq!(girih::Model::open("stories260k")?.parameters(), 260_032);
    /// # Ok::<(), girih::Error>(())
    /// ```
    pub fn parameters(&self) -> u64 {
        let weights = &self.files().weights;
        let stored = weights.names().filter_map(|name| weights.stored(name));
        stored.map(|(_, info)| info.shape.elements() as u64).sum()
    }

    /// The error of the weights that [`OpenOptions::pack`] changed, as far as they were read: all of them once the model was
    /// loaded, unless packed weights came from the cache. `None` without this option.
    ///
    /// ```
    /// use girih::{DType, Model, OpenOptions, RunOptions};
    ///
    /// let options = OpenOptions { pack: Some(DType::Q8_0), ..Default::default() };
    /// let model = Model::open_with("stories260k", &options)?;
    /// let engine = model.plan(RunOptions::default())?.load(|_| {})?;
    /// let error = model.quantization_error().expect("weights were packed");
    /// assert!(error.relative_rms > 0.0 && error.relative_rms < 0.01);
    /// # Ok::<(), girih::Error>(())
    /// ```
    pub fn quantization_error(&self) -> Option<QuantizationError> {
        self.files().quantization_error()
    }

    /// Its tokenizer and chat template.
    ///
    /// ```
    /// let model = girih::Model::open("stories260k")?;
    /// assert!(model.text_processor()?.template.is_none());
    /// # Ok::<(), girih::Error>(())
    /// ```
    ///
    /// # Errors
    /// When there is no tokenizer, or its files are malformed.
    pub fn text_processor(&self) -> Result<&TextProcessor> {
        let OpenedModel { location, files, open_options, text, .. } = &*self.0;
        let open = || Ok(with_template(location.text_processor_of(files)?, open_options));
        text.get_or_init(open).as_ref().map_err(Error::clone)
    }

    /// Tokenizes a text, and adds BOS and EOS if the tokenizer is configured to. Special tokens
    /// that are spelled in the text are encoded as plain text. An empty text gives BOS.
    ///
    /// ```
    /// let model = girih::Model::open("stories260k")?;
    /// let tokens = model.tokenize("Once upon a time")?;
    /// assert_eq!(model.detokenize(&tokens)?, "Once upon a time");
    /// # Ok::<(), girih::Error>(())
    /// ```
    ///
    /// # Errors
    /// When there is no tokenizer, or the text is too long for one.
    pub fn tokenize(&self, text: &str) -> Result<Vec<u32>> {
        self.tokenize_as(text, TextOrigin::User)
    }

    /// As [`Model::tokenize`]; with [`TextOrigin::Template`], special tokens that are spelled in
    /// the text become special tokens.
    ///
    /// ```
    /// let model = girih::Model::open("stories260k")?;
    /// let special = model.tokenize_as("</s>", girih::TextOrigin::Template)?;
    /// assert!(special.len() < model.tokenize("</s>")?.len());
    /// # Ok::<(), girih::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Model::tokenize`].
    pub fn tokenize_as(&self, text: &str, origin: TextOrigin) -> Result<Vec<u32>> {
        let tokenizer = &self.text_processor()?.tokenizer;
        let mut tokens = tokenizer.encode(text, origin, BosEos::Add)?;
        if tokens.is_empty() {
            tokens.extend(tokenizer.named().bos);
        }
        Ok(tokens)
    }

    /// Returns the text of tokens, without special tokens.
    ///
    /// ```
    /// let model = girih::Model::open("stories260k")?;
    /// assert_eq!(model.detokenize(&model.tokenize("a cat")?)?, "a cat");
    /// # Ok::<(), girih::Error>(())
    /// ```
    ///
    /// # Errors
    /// When there is no tokenizer.
    pub fn detokenize(&self, tokens: &[u32]) -> Result<String> {
        Ok(self.text_processor()?.tokenizer.decode(tokens, Specials::Skip))
    }

    /// Applies the model's chat template to a conversation; returns the prompt's text, split
    /// by who wrote it.
    ///
    /// ```
    /// use girih::{Conversation, Model};
    ///
    /// let model = Model::open("stories260k")?;
    /// let error = model.render(&Conversation::new().user("Hello")).unwrap_err();
    /// assert!(error.to_string().contains("has no chat template"));
    /// # Ok::<(), girih::Error>(())
    /// ```
    ///
    /// # Errors
    /// When the model has no template, or the template refuses the conversation.
    pub fn render(&self, conversation: &Conversation) -> Result<Vec<TextSpan>> {
        let mut renderer = self.0.renderer.lock().unwrap_or_else(PoisonError::into_inner);
        self.text_processor()?.render(&mut renderer, conversation)
    }

    /// Returns the tokens of a conversation, as the model's chat template writes it.
    ///
    /// ```no_run
    /// use girih::{Conversation, Model};
    ///
    /// let model = Model::open("models/llama-3.2-1b-instruct")?;
    /// let prompt = model.tokenize_conversation(&Conversation::new().user("Hello"))?;
    /// # Ok::<(), girih::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Model::render`].
    pub fn tokenize_conversation(&self, conversation: &Conversation) -> Result<Vec<u32>> {
        let spans = self.render(conversation)?;
        self.text_processor()?.tokenizer.encode_spans(&spans, BosEos::Omit)
    }

    /// The sampling settings with which the model ships, else greedy.
    ///
    /// ```
    /// let model = girih::Model::open("stories260k")?;
    /// assert_eq!(model.default_sampling().temperature, 0.0);
    /// # Ok::<(), girih::Error>(())
    /// ```
    pub fn default_sampling(&self) -> Sampling {
        let shipped = self.0.files.generation.clone().unwrap_or_default();
        let samples = shipped.do_sample.unwrap_or(false);
        let neutral = Sampling::default();
        Sampling {
            temperature: if samples { shipped.temperature.unwrap_or(1.0) } else { 0.0 },
            top_k: shipped.top_k.unwrap_or(neutral.top_k),
            top_p: shipped.top_p.unwrap_or(neutral.top_p),
            min_p: shipped.min_p.unwrap_or(neutral.min_p),
            repetition_penalty: shipped.repetition_penalty.unwrap_or(neutral.repetition_penalty),
            ..neutral
        }
    }

    /// The tokens that end a text: those of the model's `generation_config.json` and of its
    /// tokenizer, in order of id.
    ///
    /// ```
    /// assert!(!girih::Model::open("stories260k")?.stop_tokens()?.is_empty());
    /// # Ok::<(), girih::Error>(())
    /// ```
    ///
    /// # Errors
    /// When there is no tokenizer.
    pub fn stop_tokens(&self) -> Result<Vec<u32>> {
        let mut tokens = self.listed_stop_tokens();
        tokens.extend(self.text_processor()?.tokenizer.named().eos);
        tokens.sort_unstable();
        tokens.dedup();
        Ok(tokens)
    }

    /// The tokens that end a text as far as files other than the tokenizer's say.
    pub(crate) fn listed_stop_tokens(&self) -> Vec<u32> {
        let files = &self.0.files;
        let listed = files.generation.as_ref().map(|generation| generation.eos_token_id.list().to_vec());
        let metadata = files.weights.container().metadata();
        let keys = ["tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id"];
        let in_metadata = keys.into_iter().filter_map(|key| metadata.get::<u32>(key).ok().flatten());
        listed.unwrap_or_default().into_iter().chain(in_metadata).collect()
    }

    /// The maximum number of tokens of a sequence: prompt and reply together.
    ///
    /// ```
    /// assert_eq!(girih::Model::open("stories260k")?.max_context(), 512);
    /// # Ok::<(), girih::Error>(())
    /// ```
    pub fn max_context(&self) -> u32 {
        u32::try_from(self.0.files.facts.sizes.context).unwrap_or(u32::MAX)
    }

    /// How images for it are prepared.
    ///
    /// ```
    /// let error = girih::Model::open("stories260k")?.image_format().unwrap_err();
    /// assert!(error.to_string().contains("reads no images"));
    /// # Ok::<(), girih::Error>(())
    /// ```
    ///
    /// # Errors
    /// Of the kind [`ErrorKind::Refused`](crate::ErrorKind::Refused) when it reads no images; when the files of its image
    /// tower are malformed.
    pub fn image_format(&self) -> Result<ImageFormat> {
        Ok(ImageFormat::of(&self.tower_files()?.tower))
    }

    /// The parameters and weights of its image tower.
    ///
    /// ```
    /// assert!(girih::Model::open("stories260k")?.tower_files().is_err());
    /// # Ok::<(), girih::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Model::image_format`].
    pub fn tower_files(&self) -> Result<&Arc<TowerFiles>> {
        let open = || {
            let projector = self.0.open_options.projector.as_deref();
            Ok(Arc::new(self.0.files.tower(projector, &ModelLimits::DEFAULT)?))
        };
        self.0.tower.get_or_init(open).as_ref().map_err(Error::clone)
    }

    /// How pictures become patches, which `read` reads of its files once.
    #[cfg(feature = "image")]
    pub(crate) fn image_preparation(
        &self,
        read: impl FnOnce() -> Result<PicturePreparation>,
    ) -> Result<&PicturePreparation> {
        made_once(&self.0.preparation, read)
    }

    /// The compiler of grammars for its tokenizer.
    #[cfg(feature = "grammar")]
    pub(crate) fn grammar_compiler(&self) -> Result<&girih_grammar::GrammarCompiler> {
        made_once(&self.0.grammars, || {
            let tokenizer = &self.text_processor()?.tokenizer;
            girih_grammar::GrammarCompiler::new(tokenizer, &self.stop_tokens()?)
        })
    }

    /// The options with which it was opened.
    pub(crate) fn open_options(&self) -> &OpenOptions {
        &self.0.open_options
    }
}

/// The value of a cell, which is made if there is none. A failure is not kept: what failed, such as to start
/// a thread, may succeed later.
#[cfg(any(feature = "grammar", feature = "image"))]
fn made_once<T>(cell: &OnceLock<T>, make: impl FnOnce() -> Result<T>) -> Result<&T> {
    if let Some(value) = cell.get() {
        return Ok(value);
    }
    let value = make()?;
    // If another thread was faster, its value stays.
    Ok(cell.get_or_init(|| value))
}

/// A text processor with the chat template that `options` name, or else its own.
fn with_template(processor: TextProcessor, options: &OpenOptions) -> TextProcessor {
    match &options.chat_template {
        Some(source) => processor.with_template(source),
        None => processor,
    }
}

#[cfg(all(test, feature = "grammar"))]
mod tests {
    use girih_graph::ErrorKind;

    use super::*;

    /// The bug: once the thread of masks could not be started, no later request got a grammar.
    #[test]
    fn a_failed_start_of_the_grammar_compiler_is_tried_again() {
        let cell = OnceLock::new();
        let fails = || Err(Error::with_kind(ErrorKind::OutOfMemory, "no thread is left"));
        assert_eq!(made_once::<u32>(&cell, fails).unwrap_err().kind(), ErrorKind::OutOfMemory);
        assert_eq!(made_once(&cell, || Ok(1)).unwrap(), &1);
        assert_eq!(made_once(&cell, || panic!("it is made once")).unwrap(), &1);
    }
}
