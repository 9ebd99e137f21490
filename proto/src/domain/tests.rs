//! The fingerprint: every field counts.

use std::collections::HashSet;

use super::Fingerprint;

fn fingerprint() -> Fingerprint {
    Fingerprint {
        protocol_version: 1,
        weights_digest: [1; 32],
        metadata_digest: [2; 32],
        tokenizer_digest: [3; 32],
        kv_dtype: "bf16".into(),
        page_size: 16,
        layers: 2,
        kv_heads: 1,
        head_dim: 8,
        layout: "layer-major/k-then-v/1".into(),
        rope: "theta=10000".into(),
        numerics: "cpu/1".into(),
    }
}

type Change = fn(&mut Fingerprint);

const CHANGES: [(&str, Change); 12] = [
    ("protocol_version", |f| f.protocol_version = 2),
    ("weights_digest", |f| f.weights_digest[31] ^= 1),
    ("metadata_digest", |f| f.metadata_digest[0] ^= 1),
    ("tokenizer_digest", |f| f.tokenizer_digest[15] ^= 1),
    ("kv_dtype", |f| f.kv_dtype = "f32".into()),
    ("page_size", |f| f.page_size = 32),
    ("layers", |f| f.layers = 3),
    ("kv_heads", |f| f.kv_heads = 2),
    ("head_dim", |f| f.head_dim = 16),
    ("layout", |f| f.layout = "layer-major/k-then-v/2".into()),
    ("rope", |f| f.rope = "theta=100000".into()),
    ("numerics", |f| f.numerics = "cpu/2".into()),
];

#[test]
fn sch_10_xfr_11_every_field_changes_digest_and_differences() {
    // A field that is added must be added to the table, too.
    let Fingerprint {
        protocol_version: _,
        weights_digest: _,
        metadata_digest: _,
        tokenizer_digest: _,
        kv_dtype: _,
        page_size: _,
        layers: _,
        kv_heads: _,
        head_dim: _,
        layout: _,
        rope: _,
        numerics: _,
    } = fingerprint();
    let base = fingerprint();
    assert_eq!(base.digest(), fingerprint().digest());
    assert!(base.differing_fields(&fingerprint()).is_empty());
    let mut digests = HashSet::from([base.digest()]);
    for (field, change) in CHANGES {
        let mut other = fingerprint();
        change(&mut other);
        assert_eq!(base.differing_fields(&other), [field]);
        assert_eq!(other.differing_fields(&base), [field]);
        assert!(digests.insert(other.digest()), "{field}");
    }
    assert_eq!(digests.len(), 13);
    let mut all = fingerprint();
    for (_, change) in CHANGES {
        change(&mut all);
    }
    assert_eq!(all.differing_fields(&base), CHANGES.map(|(field, _)| field));
    assert!(digests.insert(all.digest()));
}

#[test]
fn sch_10_fields_do_not_run_into_each_other() {
    let split = |layout: &str, rope: &str, numerics: &str| Fingerprint {
        layout: layout.into(),
        rope: rope.into(),
        numerics: numerics.into(),
        ..fingerprint()
    };
    let digests: HashSet<_> = [
        split("a", "bc", ""),
        split("ab", "c", ""),
        split("", "abc", ""),
        split("abc", "", ""),
        split("", "", "abc"),
    ]
    .iter()
    .map(Fingerprint::digest)
    .collect();
    assert_eq!(digests.len(), 5);
    // Equal numbers in other fields are another fingerprint.
    let sizes = |layers, kv_heads| Fingerprint {
        layers,
        kv_heads,
        ..fingerprint()
    };
    assert_ne!(sizes(2, 1).digest(), sizes(1, 2).digest());
}
