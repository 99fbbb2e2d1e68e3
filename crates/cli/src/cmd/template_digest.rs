//! The digest of a chat template, and whether it is that of a folder.

use std::path::Path;

use girih_file::ContainerKind;
use girih_model::ModelFiles;
use girih_words::template::ChatTemplate;
use girih_words::{TextLimits, TextProcessor};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::error::Result;

/// The digest of a model's template, and the template of a folder to compare it with.
pub struct TemplateDigest {
    digest: String,
    folder: FolderTemplate,
}

/// The template of the folder that a file is compared with.
enum FolderTemplate {
    /// No folder is at hand.
    NoFolder,
    /// The folder has none.
    None,
    /// It has this digest.
    Digest(String),
}

impl TemplateDigest {
    /// The digest of the template of `text`, compared with that of `source`, or of the folder in which a
    /// GGUF lies; `None` if the model has no template.
    ///
    /// # Errors
    /// When the template of `source` cannot be read.
    pub fn of(
        model: &ModelFiles,
        text: &TextProcessor,
        source: Option<&Path>,
    ) -> Result<Option<TemplateDigest>> {
        let Some(Ok(own)) = text.template.as_ref().map(|template| template.source(None)) else {
            return Ok(None);
        };
        let is_gguf = model.weights.container().kind() == ContainerKind::Gguf;
        let folder = match source {
            Some(folder) => match ChatTemplate::read(folder, &TextLimits::DEFAULT)? {
                Some(template) => FolderTemplate::Digest(digest(template.source(None)?)),
                None => FolderTemplate::None,
            },
            // A folder with files that are not the model's is none.
            None if is_gguf => match ChatTemplate::read(model.folder(), &TextLimits::DEFAULT) {
                Ok(Some(template)) => template
                    .source(None)
                    .map_or(FolderTemplate::NoFolder, |source| FolderTemplate::Digest(digest(source))),
                Ok(None) | Err(_) => FolderTemplate::NoFolder,
            },
            None => FolderTemplate::NoFolder,
        };
        Ok(Some(TemplateDigest { digest: digest(own), folder }))
    }

    /// As a line for people.
    pub fn sentence(&self) -> String {
        let own = &self.digest;
        match &self.folder {
            FolderTemplate::NoFolder => format!("sha256 {own}"),
            FolderTemplate::None => format!("sha256 {own}; the folder has no template"),
            FolderTemplate::Digest(theirs) if theirs == own => format!("sha256 {own}, that of the folder"),
            FolderTemplate::Digest(theirs) => {
                format!("sha256 {own}; that of the folder is another one, {theirs}")
            }
        }
    }

    /// As JSON.
    pub fn json(&self) -> Value {
        let folder = match &self.folder {
            FolderTemplate::NoFolder | FolderTemplate::None => None,
            FolderTemplate::Digest(digest) => Some(digest),
        };
        json!({"sha256": self.digest, "folder_sha256": folder})
    }
}

fn digest(source: &str) -> String {
    Sha256::digest(source.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect()
}
