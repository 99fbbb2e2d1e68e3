//! Breaks lines between words where a terminal would break them within a word.
//!
//! A break is a line feed in place of spaces, and only where the terminal would have broken the line
//! anyway, so that a copied text differs from the reply at the window's edge alone. Code is passed on as it
//! is: in blocks between fences, in indented lines, and in rows of tables. So is what has no spaces, such as
//! Chinese and addresses, which the terminal breaks itself.

use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// The distance of a terminal's tab stops.
const TAB_STOPS: usize = 8;

/// The spaces with which indented code begins, as in Markdown.
const CODE_INDENT: usize = 4;

/// A text on its way to a terminal. The last word is held back until its end is known, as it may
/// belong on the next line.
#[derive(Debug, Default)]
pub struct WordWrap {
    /// The column behind what was passed on.
    column: usize,
    /// The column at which the rest of a broken line begins.
    indent: usize,
    /// The spaces and tabs before the word that is held back.
    gap: String,
    /// The word that is held back.
    word: String,
    /// The line of the text so far.
    line: String,
    /// The character and the number of them that close the block of code around the line.
    fence: Option<(char, usize)>,
}

impl WordWrap {
    /// Takes text and returns what can be shown of it, on a terminal with this number of columns.
    pub fn push(&mut self, text: &str, columns: usize) -> String {
        let mut out = String::new();
        for c in text.chars() {
            if c == '\n' {
                self.end_line(columns, &mut out);
                continue;
            }
            self.line.push(c);
            if self.fence.is_some() || is_code(&self.line) {
                self.end_word(columns, &mut out);
                self.gap.push(c);
                self.pass_gap(columns, &mut out);
            } else if matches!(c, ' ' | '\t') {
                self.end_word(columns, &mut out);
                self.gap.push(c);
            } else if c.width() == Some(2) {
                // Characters of this width are words of their own; there is no space to replace.
                self.end_word(columns, &mut out);
                self.word.push(c);
                self.end_word(columns, &mut out);
            } else {
                self.word.push(c);
                // No line has room for it.
                if self.word.len() >= columns && self.word.width() >= columns {
                    self.end_word(columns, &mut out);
                }
            }
        }
        out
    }

    /// Returns what is held back.
    pub fn flush(&mut self, columns: usize) -> String {
        let mut out = String::new();
        self.end_word(columns, &mut out);
        self.pass_gap(columns, &mut out);
        out
    }

    fn end_line(&mut self, columns: usize, out: &mut String) {
        self.end_word(columns, out);
        // Spaces behind the last column would make an empty line.
        if behind(self.column, &self.gap) <= columns {
            self.pass_gap(columns, out);
        }
        self.gap.clear();
        out.push('\n');
        self.column = 0;
        self.fence = fence_after(self.fence, &self.line);
        self.line.clear();
    }

    /// Passes on the word that is held back, on the next line if it crosses the edge.
    fn end_word(&mut self, columns: usize, out: &mut String) {
        if self.word.is_empty() {
            return;
        }
        let end = behind(self.column, &self.gap) + self.word.width();
        if end > columns && !self.gap.is_empty() && self.column > self.indent {
            self.gap = " ".repeat(self.indent);
            self.column = 0;
            out.push('\n');
        }
        self.gap.push_str(&std::mem::take(&mut self.word));
        self.pass_gap(columns, out);
    }

    /// Passes on `gap` as it is.
    fn pass_gap(&mut self, columns: usize, out: &mut String) {
        for c in self.gap.chars() {
            let next = column_behind(self.column, c);
            // The terminal goes on in the next line.
            self.column = if next > columns { c.width().unwrap_or(0) } else { next };
        }
        out.push_str(&std::mem::take(&mut self.gap));
    }
}

/// A whole text with its lines broken between words. Where a line has columns of text, as help has, the rest
/// of a broken line begins in the last of them.
pub fn wrapped(text: &str, columns: usize) -> String {
    let broken = |line: &str| {
        let text = line.trim_end();
        let indent = text.rfind("  ").map_or(0, |at| text[..at + 2].width());
        let mut wrap =
            WordWrap { indent: if indent < columns / 2 { indent } else { 0 }, ..WordWrap::default() };
        wrap.push(line, columns) + &wrap.flush(columns)
    };
    text.split('\n').map(broken).collect::<Vec<_>>().join("\n")
}

/// The column behind a text that begins in `column`.
fn behind(column: usize, text: &str) -> usize {
    text.chars().fold(column, column_behind)
}

fn column_behind(column: usize, c: char) -> usize {
    match c {
        '\t' => (column / TAB_STOPS + 1) * TAB_STOPS,
        c => column + c.width().unwrap_or(0),
    }
}

/// Whether a line that begins like this is code or a row of a table. An indented point of a list is none.
fn is_code(line: &str) -> bool {
    let text = line.trim_start_matches([' ', '\t']);
    let is_indented = behind(0, &line[..line.len() - text.len()]) >= CODE_INDENT;
    let is_point = |c: char| c.is_ascii_digit() || matches!(c, '-' | '*' | '+' | '•');
    text.starts_with("```")
        || text.starts_with("~~~")
        || text.starts_with('|')
        || (is_indented && text.chars().next().is_some_and(|c| !is_point(c)))
}

/// The fence of the lines that follow `line`.
fn fence_after(fence: Option<(char, usize)>, line: &str) -> Option<(char, usize)> {
    let text = line.trim();
    let Some(mark) = text.chars().next().filter(|c| matches!(c, '`' | '~')) else { return fence };
    let rest = text.trim_start_matches(mark);
    let count = text.len() - rest.len();
    match fence {
        Some((known, least)) if mark == known && count >= least && rest.is_empty() => None,
        // Backticks after three are code within a line.
        None if count >= 3 && !(mark == '`' && rest.contains('`')) => Some((mark, count)),
        _ => fence,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The text as a terminal gets it, in pieces of any size.
    fn shown(text: &str, columns: usize) -> String {
        let whole = |size: usize| {
            let mut wrap = WordWrap::default();
            let characters: Vec<char> = text.chars().collect();
            let pieces = characters.chunks(size).map(|piece| piece.iter().collect::<String>());
            let shown: String = pieces.map(|piece| wrap.push(&piece, columns)).collect();
            shown + &wrap.flush(columns)
        };
        let one = whole(1);
        for size in [2, 3, 7, 1000] {
            assert_eq!(whole(size), one, "{size}");
        }
        one
    }

    #[test]
    fn a_word_that_crosses_the_edge_is_on_the_next_line() {
        assert_eq!(shown("Once upon a time there was", 10), "Once upon\na time\nthere was");
        // A word may end in the last column.
        assert_eq!(shown("0123456789 a\n01234 6789 b", 10), "0123456789\na\n01234 6789\nb");
        assert_eq!(shown("  indented words here", 12), "  indented\nwords here");
        assert_eq!(shown("a\n\n  b  \n", 10), "a\n\n  b  \n");
        assert_eq!(shown("0123456 \t  \nb", 8), "0123456\nb", "spaces behind the edge make no line");
        assert_eq!(shown("a\tb c", 9), "a\tb\nc");
    }

    #[test]
    fn a_text_that_fits_is_as_it_was() {
        for text in ["", " ", "a b  c \n\n d", "\ta\tb", "日本 語", "👩\u{200d}🔬 e\u{301}"] {
            assert_eq!(shown(text, 80), text);
        }
    }

    #[test]
    fn the_last_word_is_held_back_until_its_end() {
        let mut wrap = WordWrap::default();
        assert_eq!(wrap.push("Once up", 10), "Once");
        assert_eq!(wrap.push("on a", 10), " upon");
        assert_eq!(wrap.push(" time", 10), " a".replace(' ', "\n"));
        assert_eq!(wrap.flush(10), " time");
        assert_eq!(wrap.push("s", 10), "");
        assert_eq!(wrap.flush(10), "s", "it continues the word");
    }

    #[test]
    fn wide_characters_have_two_columns_and_get_no_line_feed() {
        assert_eq!(shown("日本 ab", 6), "日本\nab");
        assert_eq!(shown("日本 a", 6), "日本 a");
        assert_eq!(shown("日本語日本語", 4), "日本語日本語", "the terminal breaks it");
        // The terminal has begun the next line with the last character.
        assert_eq!(shown("日本語 a b c", 5), "日本語 a\nb c");
        assert_eq!(shown("e\u{301}e\u{301} e\u{301}", 4), "e\u{301}e\u{301} e\u{301}");
    }

    #[test]
    fn a_word_wider_than_the_terminal_stays_whole() {
        let address = "https://example.org/a/long/path";
        assert_eq!(shown(&format!("See {address} or not"), 12), format!("See\n{address} or\nnot"));
    }

    #[test]
    fn code_and_tables_are_as_they_were() {
        for code in [
            "```rust\nlet a = a long line of code;\n```\n",
            "~~~\na b c d e f g\n```\nh i j k l m n\n~~~\n",
            "````\n```\na b c d e f g\n````\n",
            "    let a = indented;\n",
            "\tlet a = indented;\n",
            "| a table | of two |\n",
        ] {
            assert_eq!(shown(code, 10), code);
        }
        let after = "```\na b c d e f\n```\na b c d e f";
        assert_eq!(shown(after, 10), "```\na b c d e f\n```\na b c d e\nf");
        assert_eq!(
            shown("```a``` b c d\nb c d e f g", 10),
            "```a``` b c d\nb c d e f\ng",
            "it opens no block"
        );
        assert_eq!(shown("    - a point of a list", 12), "    - a\npoint of a\nlist");
    }

    #[test]
    fn the_rest_of_a_line_of_help_stands_below_its_text() {
        assert_eq!(wrapped("/save  write the file\nend", 17), "/save  write the\n       file\nend");
        assert_eq!(wrapped("a  b", 2), "a\nb", "half of the columns are for text");
    }
}
