//! The options of drafts: what drafts tokens that the model then checks several at a time.

use std::path::Path;

use clap::Args;
use girih::{Drafts, Model, Plan, RunOptions};

use crate::args::ArchArgs;
use crate::error::{Error, Result};
use crate::loading;
use crate::progress::Show;
use crate::typed_options::TypedOptions;

/// The value of `--draft` for no drafts.
const OFF: &str = "off";

/// The value of `--draft` for prompt lookup.
const LOOKUP: &str = "lookup";

/// The value of `--draft` for the model's own layer.
const MTP: &str = "mtp";

/// What drafts tokens.
#[derive(Clone, Debug, Args)]
pub struct DraftArgs {
    /// Speculative decoding: draft tokens by prompt lookup ('lookup'), with the model's layer for multi-token prediction
    /// ('mtp') or with a smaller model of the same vocabulary; 'off' drafts none (does not affect results, except on npu).
    #[arg(long, value_name = "lookup|mtp|MODEL", default_value = OFF, alias = "model-draft")]
    pub draft: String,
    /// Maximum number of tokens of a draft (does not affect results, except on npu).
    #[arg(
        long, value_name = "N", default_value = "15", aliases = ["draft-n"],
        value_parser = clap::value_parser!(u32).range(1..=64)
    )]
    pub draft_max: u32,
}

impl DraftArgs {
    /// The draft model's name or path.
    pub fn name_as_given(&self) -> Option<&str> {
        (![OFF, LOOKUP, MTP].contains(&self.draft.as_str())).then_some(self.draft.as_str())
    }

    /// What drafts, without the folders of a model; `None` if nothing does.
    pub fn name(&self) -> Option<String> {
        let file = Path::new(&self.draft).file_name().map(|name| name.to_string_lossy().into_owned());
        (self.draft != OFF).then(|| file.unwrap_or_else(|| self.draft.clone()))
    }

    /// These options, or no drafts if `draft` was not typed: a variable or key is for many calls.
    pub fn if_typed(&self, typed: &TypedOptions) -> DraftArgs {
        let draft = if typed.has("draft") { self.draft.clone() } else { OFF.to_owned() };
        DraftArgs { draft, ..self.clone() }
    }

    /// The plan of a model with these drafts; opens a draft model. Drafts of a variable or key that
    /// cannot draft for the model are left out with a note.
    ///
    /// # Errors
    /// When the draft model cannot be opened, --draft-max was `typed` without drafts, or the model cannot
    /// run with `options`.
    pub fn plan(
        &self,
        model: &Model,
        options: RunOptions,
        arch: &ArchArgs,
        typed: &TypedOptions,
        show: Show,
    ) -> Result<Plan> {
        let applied = self.applied(options.clone(), arch, typed)?;
        let drafts = !matches!(applied.drafts, Drafts::Off);
        match model.plan(applied) {
            Err(error) if drafts && !typed.has("draft") => {
                let plan = model.plan(options)?;
                show.note(format!("drafts are off: {error}"));
                Ok(plan)
            }
            plan => Ok(plan?),
        }
    }

    /// `options` with these drafts; opens a draft model.
    ///
    /// # Errors
    /// When the draft model cannot be opened, or --draft-max was `typed` without drafts.
    fn applied(&self, options: RunOptions, arch: &ArchArgs, typed: &TypedOptions) -> Result<RunOptions> {
        if self.draft == OFF && typed.has("draft-max") {
            return Err(Error::call(
                "--draft-max limits drafts, but --draft is off; add --draft, or omit --draft-max",
            ));
        }
        let drafts = match self.draft.as_str() {
            OFF => Drafts::Off,
            LOOKUP => Drafts::PromptLookup,
            MTP => Drafts::Mtp,
            name => Drafts::Model(loading::open(name, arch)?),
        };
        Ok(RunOptions { drafts, draft_max: self.draft_max, ..options })
    }
}
