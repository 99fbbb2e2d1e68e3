//! Conversions with recipes.

use girih_tensor::DType;

use super::{SMALL, check_copy, committed, open, with_recipe, write};
use crate::folder::empty_folder;

fn rule(tensors: &str, dtype: &str) -> String {
    format!("[[rule]]\ntensors = '{tensors}'\ntype = '{dtype}'\n")
}

#[test]
fn rules_match_in_order_by_either_name() {
    let out = empty_folder("convert-recipe").join("model.gguf");
    let recipe = rule("blk.1.attn_q.weight", "f16") + &rule("layers.*.mixer.q.weight", "q8_0");
    let model = open(&committed(SMALL));
    let report = write(&model, &out, &with_recipe("q4_0", &recipe)).unwrap();
    let copy = open(&out);
    check_copy(&model, &copy);
    let dtype =
        |layer: usize, part: &str| copy.weights.info(&format!("layers.{layer}.mixer.{part}")).unwrap().0;
    assert_eq!([0, 1, 2].map(|layer| dtype(layer, "q.weight")), [DType::Q8_0, DType::F16, DType::Q8_0]);
    assert_eq!(dtype(1, "k.weight"), DType::Q4_0);
    let ruled = report.tensors.iter().find(|tensor| tensor.name == "blk.1.attn_q.weight").unwrap();
    assert_eq!(ruled.note.as_deref(), Some("rule 1 of the recipe"));
}

#[test]
fn a_recipe_that_does_not_match_the_model_is_refused() {
    let folder = empty_folder("convert-recipe-bad");
    let model = open(&committed(SMALL));
    for (target, recipe, words) in [
        ("q4_0", rule("layers.*.experts", "q8_0"), "rule 1 of the recipe, 'layers.*.experts', applies to no"),
        ("q4_0", rule("*.mixer.*", "q8_0") + &rule("*.q.weight", "f16"), "rule 2 of the recipe"),
        ("q4_0", rule("*norm*", "q8_0"), "applies to no matrix"), // norms are vectors
        ("q4_0", rule("*.q.weight", "q4nx"), "q4nx cannot be stored in this"),
        ("q4_0", rule("*.q.weight", "i8"), "i8 cannot be stored in this"),
        ("q4nx", rule("*.q.weight", "q8_0"), "q8_0 cannot be stored in this"),
        ("q4_0", rule("*.q.weight", "q4_k"), "rows of 64 values cannot be stored as q4_k"),
    ] {
        let error =
            write(&model, &folder.join("out"), &with_recipe(target, &recipe)).unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    }
    assert_eq!(folder.read_dir().unwrap().count(), 0, "failed conversions leave no files");
}
