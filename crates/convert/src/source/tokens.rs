//! Compares the tokenizer of a file with that of its source.

use girih_words::{BosEos, Specials, TextOrigin, Tokenizer};

use super::finding::{SourceFinding, SourcePart, SourceVerdict};
use super::texts::{CUT, KINDS};

/// The tokens around the first difference that a sentence shows.
const SHOWN: usize = 4;

/// The tokenizers of a file and of its source.
struct Tokenizers<'a> {
    ours: &'a Tokenizer,
    theirs: &'a Tokenizer,
    /// The number of rows of the embedding table.
    rows: usize,
}

/// Compares tokenizers for a model with `rows` tokens.
pub(super) fn compare(ours: &Tokenizer, theirs: &Tokenizer, rows: usize) -> Vec<SourceFinding> {
    let both = Tokenizers { ours, theirs, rows };
    let mut findings = vec![both.vocabulary(), both.named(), both.special()];
    for kind in &KINDS {
        let texts = kind.texts.iter().map(|text| (*text).to_owned());
        findings.push(both.texts(kind.name, texts, &[TextOrigin::User, TextOrigin::Template]));
    }
    findings.push(both.cut());
    let spelled: Vec<&str> = both.control_tokens().collect();
    let within = spelled.iter().map(|token| format!("a{token}b"));
    findings.push(both.texts("special tokens in text", within, &[TextOrigin::User, TextOrigin::Template]));
    let spaced = spelled.iter().map(|token| format!("a {token} \n b"));
    findings.push(both.texts("spaces beside special tokens", spaced, &[TextOrigin::Template]));
    findings
}

fn finding(name: &str, verdict: SourceVerdict, detail: impl Into<String>) -> SourceFinding {
    SourceFinding::new(SourcePart::Tokenizer, name, verdict, detail)
}

/// A finding that differs if there is a difference.
fn found(name: &str, difference: Option<String>, agrees: impl Into<String>) -> SourceFinding {
    match difference {
        Some(difference) => finding(name, SourceVerdict::Differs, difference),
        None => finding(name, SourceVerdict::Agrees, agrees),
    }
}

impl Tokenizers<'_> {
    /// The ids that the model has a row for.
    fn ids(&self) -> impl Iterator<Item = u32> + '_ {
        0..self.theirs.vocab_size().min(u32::try_from(self.rows).unwrap_or(u32::MAX))
    }

    /// The spellings of the source's special tokens.
    fn control_tokens(&self) -> impl Iterator<Item = &str> {
        self.ids().filter(|id| self.theirs.is_special(*id)).filter_map(|id| self.theirs.token(id))
    }

    /// Whether each id stands for the same text.
    fn vocabulary(&self) -> SourceFinding {
        let shown = |tokenizer: &Tokenizer, id| format!("{:?}", tokenizer.token(id).unwrap_or_default());
        let differs = self.ours.first_difference(self.theirs).map(|id| {
            let (ours, theirs) = (shown(self.ours, id), shown(self.theirs, id));
            format!("token {id} is {ours} in the file and {theirs} in the source")
        });
        let lacks = || {
            let id =
                self.ids().find(|id| self.theirs.token(*id).is_some() && self.ours.token(*id).is_none())?;
            Some(format!("the file lacks token {id}, {}", shown(self.theirs, id)))
        };
        let count = self.ids().count();
        found("vocabulary", differs.or_else(lacks), format!("{count} tokens have equal texts"))
    }

    /// BOS and EOS, and what is added around a text.
    fn named(&self) -> SourceFinding {
        let (ours, theirs) = (self.ours.named(), self.theirs.named());
        let ids = [("BOS", ours.bos, theirs.bos), ("EOS", ours.eos, theirs.eos)];
        // A folder without such a token leaves it to the converter, which may name one that is not added.
        let differs = ids.into_iter().filter(|(_, ours, theirs)| theirs.is_some() && ours != theirs);
        let named = differs.map(|(name, ours, theirs)| {
            format!("{name} is {} in the file and {} in the source", self.id(ours), self.id(theirs))
        });
        let around = |tokenizer: &Tokenizer| {
            tokenizer.encode("a", TextOrigin::User, BosEos::Add).map(|ids| {
                let text = tokenizer.encode("a", TextOrigin::User, BosEos::Omit).unwrap_or_default();
                let at = ids.windows(text.len().max(1)).position(|part| part == text).unwrap_or_default();
                (ids[..at].to_vec(), ids[(at + text.len()).min(ids.len())..].to_vec())
            })
        };
        let added = match (around(self.ours), around(self.theirs)) {
            (Ok(ours), Ok(theirs)) if ours == theirs => None,
            (Ok(ours), Ok(theirs)) => {
                let shown =
                    |(before, after): (Vec<u32>, Vec<u32>)| format!("{before:?} before and {after:?} after");
                let (ours, theirs) = (shown(ours), shown(theirs));
                Some(format!("a text has the tokens {ours} it in the file, {theirs} it in the source"))
            }
            (Err(error), _) | (_, Err(error)) => Some(error.to_string()),
        };
        let all: Vec<String> = named.chain(added).collect();
        let detail = format!("BOS {}, EOS {}", self.id(ours.bos), self.id(ours.eos));
        found("BOS and EOS", (!all.is_empty()).then(|| all.join("; ")), detail)
    }

    /// An id with its token.
    fn id(&self, id: Option<u32>) -> String {
        let Some(id) = id else { return "none".to_owned() };
        format!("{id} {:?}", self.theirs.token(id).unwrap_or_default())
    }

    /// Whether what the source marks as special is a control token in the file. llama.cpp's converter also
    /// marks others by their spelling, which users then cannot write.
    fn special(&self) -> SourceFinding {
        let lost = self.ids().find(|id| self.theirs.is_special(*id) && !self.ours.is_special(*id));
        let more = self.ids().filter(|id| !self.theirs.is_special(*id) && self.ours.is_special(*id));
        let lost = lost.map(|id| format!("token {} is special in the source only", self.id(Some(id))));
        let (all, more) = (self.control_tokens().count(), more.count());
        let further = if more == 0 { String::new() } else { format!("; the file marks {more} more") };
        found("special tokens", lost, format!("{all} are special in both{further}"))
    }

    /// Whether texts have equal tokens, whichever program wrote them.
    fn texts(
        &self,
        name: &str,
        texts: impl IntoIterator<Item = String>,
        origins: &[TextOrigin],
    ) -> SourceFinding {
        let (mut count, mut first) = (0, None);
        for text in texts {
            count += 1;
            let differs = origins.iter().find_map(|origin| self.text(&text, *origin));
            first = first.or(differs);
        }
        found(name, first, format!("{count} texts have equal tokens"))
    }

    /// The first difference of a text's tokens.
    fn text(&self, text: &str, origin: TextOrigin) -> Option<String> {
        let ids = |tokenizer: &Tokenizer| tokenizer.encode(text, origin, BosEos::Omit);
        match (ids(self.ours), ids(self.theirs)) {
            (Ok(ours), Ok(theirs)) if ours == theirs => None,
            (Ok(ours), Ok(theirs)) => {
                let equal = ours.iter().zip(&theirs).take_while(|(ours, theirs)| ours == theirs).count();
                let shown = |tokenizer: &Tokenizer, ids: &[u32]| {
                    let ids = ids.iter().skip(equal).take(SHOWN);
                    let tokens = ids.map(|id| format!("{id} {:?}", tokenizer.token(*id).unwrap_or_default()));
                    let tokens: Vec<String> = tokens.collect();
                    if tokens.is_empty() { "the end".to_owned() } else { tokens.join(", ") }
                };
                let (ours, theirs) = (shown(self.ours, &ours), shown(self.theirs, &theirs));
                Some(format!("{text:?} has {ours} at token {equal} in the file, {theirs} in the source"))
            }
            (Err(error), Ok(_)) => Some(format!("{text:?} is refused by the file's: {error}")),
            (Ok(_), Err(error)) => Some(format!("{text:?} is refused by the source's: {error}")),
            (Err(_), Err(_)) => None,
        }
    }

    /// Whether tokens become the same text where they are cut.
    fn cut(&self) -> SourceFinding {
        let ids = self.theirs.encode(CUT, TextOrigin::User, BosEos::Omit).unwrap_or_default();
        let parts = (0..ids.len()).flat_map(|at| [&ids[..at], &ids[at..]]);
        let differs = parts.into_iter().find_map(|part| {
            let [ours, theirs] = [self.ours, self.theirs].map(|one| one.decode(part, Specials::Keep));
            let detail =
                || format!("the tokens {part:?} become {ours:?} in the file, {theirs:?} in the source");
            (ours != theirs).then(detail)
        });
        found("characters cut between tokens", differs, format!("{} parts become equal texts", 2 * ids.len()))
    }
}
