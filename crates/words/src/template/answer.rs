//! Answers one job: reads it, compiles its template and renders it.

use std::panic::{AssertUnwindSafe, catch_unwind};

use girih_file::shorten;

use super::jinja::CompiledTemplate;
use super::protocol::{RenderAnswer, RenderJob};

/// Answers one job. Keeps the last template compiled. A panic of minijinja is
/// an answer, too.
pub fn answer(
    job: &[u8],
    compiled: &mut Option<CompiledTemplate>,
    compile: impl Fn(&str) -> Result<CompiledTemplate, RenderAnswer>,
) -> RenderAnswer {
    catch_unwind(AssertUnwindSafe(|| render(job, compiled, compile))).unwrap_or_else(|_| {
        *compiled = None;
        RenderAnswer::Failed("caused a panic in minijinja".to_owned())
    })
}

fn render(
    job: &[u8],
    compiled: &mut Option<CompiledTemplate>,
    compile: impl Fn(&str) -> Result<CompiledTemplate, RenderAnswer>,
) -> RenderAnswer {
    let job: RenderJob = match serde_json::from_slice(job) {
        Ok(job) => job,
        Err(error) => {
            return RenderAnswer::Failed(format!("has variables that cannot be read: {}", shorten(error)));
        }
    };
    if !compiled.as_ref().is_some_and(|compiled| compiled.is_of(&job.template)) {
        match compile(&job.template) {
            Ok(new) => *compiled = Some(new),
            Err(answer) => return answer,
        }
    }
    compiled.as_mut().expect("compiled just above").render(&job)
}
