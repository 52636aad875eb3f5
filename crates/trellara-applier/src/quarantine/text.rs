//! Texts of people and of programs, as the target can store them.
//!
//! We speak UTF-8 to a target whose database may have another encoding, and it refuses a whole
//! statement for one character that its encoding lacks. What says why a transaction is held, or who
//! did what, is never to be lost for that.

use std::borrow::Cow;

use tokio_postgres::{Client, Error};

const ENCODING: &str = "SELECT pg_catalog.getdatabaseencoding()::text";

/// What stands for a character that cannot be stored.
const LACKING: char = '?';

/// `texts` with `?` for each character that the target's encoding lacks. Of encodings other than
/// UTF-8 and LATIN1 we know that they have ASCII. Texts in ASCII cost no round trip.
///
/// # Errors
/// When the server refuses.
pub async fn storable<'t, const N: usize>(
    client: &Client,
    texts: [&'t str; N],
) -> Result<[Cow<'t, str>; N], Error> {
    if texts.iter().all(|text| text.is_ascii()) {
        return Ok(texts.map(|text| reduced(text, "SQL_ASCII")));
    }
    let row = client.query_one(ENCODING, &[]).await?;
    let encoding: &str = row.get(0);
    Ok(texts.map(|text| reduced(text, encoding)))
}

fn reduced<'t>(text: &'t str, encoding: &str) -> Cow<'t, str> {
    let has = |c: char| {
        c != '\0'
            && match encoding {
                "UTF8" => true,
                "LATIN1" => u32::from(c) <= 0xff,
                _ => c.is_ascii(),
            }
    };
    if text.chars().all(has) {
        return Cow::Borrowed(text);
    }
    let kept = text.chars().map(|c| if has(c) { c } else { LACKING });
    Cow::Owned(kept.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_encoding_lacks_is_replaced_and_nothing_else() {
        let text = "größe … 漢\0";
        assert_eq!(reduced(text, "UTF8"), "größe … 漢?");
        assert_eq!(reduced(text, "LATIN1"), "größe ? ??");
        assert_eq!(reduced(text, "EUC_JP"), "gr??e ? ??");
        assert!(matches!(reduced("as it is", "EUC_JP"), Cow::Borrowed(_)));
    }
}
