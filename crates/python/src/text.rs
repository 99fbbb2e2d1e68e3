//! A tokenizer with its chat template, with or without the model that it belongs to.

use std::sync::{Arc, Mutex};

use girih::{BosEos, Conversation, Model, OpenOptions, Result, TextOrigin, TextProcessor, TextSpan, json};
use pyo3::prelude::*;

use crate::errors::{parsed, raised};
use crate::waiting::lock;

/// The options of opening in a JSON text.
pub fn open_options(py: Python<'_>, text: &str) -> PyResult<OpenOptions> {
    let value = parsed(py, "the options", text)?;
    json::open_options(&value).map_err(|error| raised(py, &error))
}

/// Where the tokenizer comes from.
enum TextSource {
    /// An opened model.
    Model(Model),
    /// Its files alone.
    Files { processor: Box<TextProcessor>, renderer: Mutex<girih::Renderer> },
}

/// A tokenizer with its chat template.
#[pyclass(name = "Tokenizer", frozen, module = "girih._girih")]
pub struct PyTokenizer(Arc<TextSource>);

impl PyTokenizer {
    /// That of a model.
    pub fn of(model: &Model) -> PyTokenizer {
        PyTokenizer(Arc::new(TextSource::Model(model.clone())))
    }

    fn processor(&self) -> Result<&TextProcessor> {
        match &*self.0 {
            TextSource::Model(model) => model.text_processor(),
            TextSource::Files { processor, .. } => Ok(processor),
        }
    }

    fn rendered(&self, conversation: &Conversation) -> Result<Vec<TextSpan>> {
        match &*self.0 {
            TextSource::Model(model) => model.render(conversation),
            TextSource::Files { processor, renderer } => processor.render(&mut lock(renderer), conversation),
        }
    }

    fn template_tokens(&self, conversation: &Conversation) -> Result<Vec<u32>> {
        self.processor()?.tokenizer.encode_spans(&self.rendered(conversation)?, BosEos::Omit)
    }
}

#[pymethods]
impl PyTokenizer {
    /// Opens the tokenizer of a model, without its weights.
    #[staticmethod]
    fn open(py: Python<'_>, name: &str, options: &str) -> PyResult<PyTokenizer> {
        let options = open_options(py, options)?;
        let processor = py.detach(|| Model::text_processor_of(name, &options));
        let processor = Box::new(processor.map_err(|error| raised(py, &error))?);
        let renderer = Mutex::new(options.renderer());
        Ok(PyTokenizer(Arc::new(TextSource::Files { processor, renderer })))
    }

    /// The ids of a text. With `special`, special tokens that it spells become special tokens; with `bos`, BOS and EOS are
    /// added if the tokenizer is configured to.
    fn encode(&self, py: Python<'_>, text: &str, special: bool, bos: bool) -> PyResult<Vec<u32>> {
        let origin = if special { TextOrigin::Template } else { TextOrigin::User };
        let bos = if bos { BosEos::Add } else { BosEos::Omit };
        let ids = py.detach(|| self.processor()?.tokenizer.encode(text, origin, bos));
        ids.map_err(|error| raised(py, &error))
    }

    /// The text of ids, with or without special tokens.
    fn decode(&self, py: Python<'_>, ids: Vec<u32>, special: bool) -> PyResult<String> {
        let specials = if special { girih::Specials::Keep } else { girih::Specials::Skip };
        let text = py.detach(|| Ok(self.processor()?.tokenizer.decode(&ids, specials)));
        text.map_err(|error| raised(py, &error))
    }

    /// A conversation as the chat template writes it: a JSON list of spans with their origin.
    fn render(&self, py: Python<'_>, conversation: &str) -> PyResult<String> {
        let value = parsed(py, "the conversation", conversation)?;
        let spans = py.detach(|| self.rendered(&json::conversation(&value)?));
        Ok(json::text_spans(&spans.map_err(|error| raised(py, &error))?).to_string())
    }

    /// The ids of a conversation as the chat template writes it.
    fn encode_chat(&self, py: Python<'_>, conversation: &str) -> PyResult<Vec<u32>> {
        let value = parsed(py, "the conversation", conversation)?;
        let ids = py.detach(|| self.template_tokens(&json::conversation(&value)?));
        ids.map_err(|error| raised(py, &error))
    }

    /// The token of an id as the vocabulary spells it; `None` if there is none.
    fn token(&self, py: Python<'_>, id: u32) -> PyResult<Option<String>> {
        let processor = self.processor().map_err(|error| raised(py, &error))?;
        Ok(processor.tokenizer.token(id).map(str::to_owned))
    }

    /// The id of a token as the vocabulary spells it; `None` if there is none.
    fn id(&self, py: Python<'_>, token: &str) -> PyResult<Option<u32>> {
        Ok(self.processor().map_err(|error| raised(py, &error))?.tokenizer.id(token))
    }

    /// The number of ids, the bytes that special tokens stand for, and whether there is a chat template.
    fn facts(&self, py: Python<'_>) -> PyResult<String> {
        let processor = self.processor().map_err(|error| raised(py, &error))?;
        let named = processor.tokenizer.named();
        let facts = serde_json::json!({
            "size": processor.tokenizer.vocab_size(),
            "bos": named.bos,
            "eos": named.eos,
            "has_template": processor.template.is_some(),
        });
        Ok(facts.to_string())
    }
}
