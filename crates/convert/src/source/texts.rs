//! Texts on which tokenizers differ: each kind is treated by rules of its own.

/// Texts of one kind.
pub(super) struct TextKind {
    /// Its name in reports.
    pub name: &'static str,
    /// The texts.
    pub texts: &'static [&'static str],
}

/// The kinds that need no knowledge of the tokenizer.
pub(super) const KINDS: [TextKind; 7] = [
    TextKind {
        name: "languages",
        texts: &[
            "",
            "The quick brown fox doesn't jump; it's tired, they'll say, and WE'RE NOT.",
            "Die Straße über den Fluß führt nach Åre, Łódź und Kraków.",
            "Où est l'été ? Çà et là, naïveté œuvrée.",
            "Привет, как дела? Ёлка ещё зелёная.",
            "مرحبا بالعالم، كيف الحال؟",
            "नमस्ते दुनिया, क्षत्रिय",
            "สวัสดีชาวโลก ภาษาไทยไม่มีช่องว่าง",
            "你好,世界。今天天气怎么样?",
            "こんにちは、世界。カタカナとひらがな",
            "안녕하세요, 세계 여러분",
            "Việt Nam: Tiếng Việt, được không?",
        ],
    },
    TextKind {
        name: "numbers",
        texts: &[
            "0",
            "12",
            "123",
            "1234",
            "12345",
            "1234567890",
            "3.14159",
            "-1e-10",
            "1,000,000",
            "a1b22c333d4444",
            "٣٤٥ ४५६ ½ ² Ⅳ",
            "0x1F 2026-11-26 12:34:56",
        ],
    },
    TextKind {
        name: "spaces",
        texts: &[
            " ",
            "  ",
            "    four",
            " a",
            "a  b   c    d",
            "a \n b",
            "\n\n\n",
            "a\n\n  b",
            "\t\ttabs\tand \t spaces",
            "line\r\nline\r\n\r\n",
            "ends in spaces   ",
            "a\u{a0}b\u{3000}c\u{200b}d",
        ],
    },
    TextKind {
        name: "code",
        texts: &[
            "fn main() {\n    println!(\"{}\", x[0] + y->z);\n}\n",
            "def f(self, *args, **kwargs):\n\tif a != b: return None  # why?\n",
            "<div class=\"a\">&amp;</div><!-- --> </s",
            "SELECT * FROM t WHERE a>=1 AND b<>'x';--",
            "https://example.org/a/b?c=d&e=%20#f user@example.org",
            "snake_case camelCase SCREAMING_CASE kebab-case a/b\\c $x_1 @y #z",
            "{\"a\": [1, 2.5, null, true], \"b\": {\"c\": \"\\u00e9\\n\"}}",
            "!!! ... --- ***  ===>>> ~~~ ``` '' \"\" ;;;",
        ],
    },
    TextKind {
        name: "emoji", texts: &["😀", "a😀b 😀😀", "👩‍👩‍👧‍👦 family", "🇩🇪🇯🇵", "👍🏽 ❤️ ☎", "𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𐍈"]
    },
    TextKind {
        name: "combined characters",
        texts: &[
            "e\u{301}e\u{301} é",
            "ﬁ ﬂ ﬃ",
            "ｆｕｌｌｗｉｄｔｈ　１２３",
            "Å Å Å",
            "\u{1100}\u{1161}\u{11a8} 각",
            "ẛ̣ q̣̇ q̣̇",
        ],
    },
    TextKind {
        name: "broken UTF-8 and control characters",
        texts: &[
            "\u{fffd}",
            "caf\u{fffd} \u{fffd}\u{fffd}a",
            "\u{0}\u{1}\u{7f}\u{80}",
            "\u{feff}a\u{200d}b\u{2028}c",
            "\u{e000}\u{f8ff}\u{10ffff}",
        ],
    },
];

/// A text whose tokens are cut everywhere, so that characters break.
pub(super) const CUT: &str = "naïve 日本語 😀👩‍👧 caf\u{e9} \u{fffd} नमस्ते";
