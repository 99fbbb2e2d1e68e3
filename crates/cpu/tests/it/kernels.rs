//! The names of tables.

use girih_cpu::kernels::{by_name, names, tables};

#[test]
fn tables_are_found_by_name() {
    let have: Vec<_> = tables().iter().map(|table| table.name).collect();
    let known: Vec<_> = names().iter().filter(|name| have.contains(name)).collect();
    assert_eq!(known, have.iter().collect::<Vec<_>>(), "tables and names have one order, best first");
    for name in names() {
        match by_name(name) {
            Ok(table) => assert_eq!(table.name, *name),
            Err(_) => assert!(!have.contains(name)),
        }
    }
    let error = by_name("abacus").unwrap_err().to_string();
    assert!(error.contains("'abacus'") && error.ends_with(&have.join(", ")), "{error}");
}
