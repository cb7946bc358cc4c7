//! `farref certs`: certificates for groups whose connections are encrypted.
//!
//! An [`Authority`] issues a [`Pair`] of certificate and key for a [`Bearer`]; [`files`] says how they get to where
//! workers read them. `farref launch --tls` uses the same.

mod arguments;
mod authority;
mod bearer;
mod error;
mod files;
mod found;
mod moment;

pub(crate) use arguments::Arguments;
pub(crate) use authority::{Authority, CERTIFICATE};
pub(crate) use bearer::{Bearer, check_name};
pub(crate) use files::Folder;

use std::path::Path;
use std::process::ExitCode;

use arguments::{Command, Init, Issue, Show};
use error::CertsError;
use found::Found;

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let said = match &arguments.command {
        Command::Init(arguments) => init(arguments)?,
        Command::Issue(arguments) => issue(arguments)?,
        Command::Show(arguments) => show(arguments)?,
    };
    print!("{said}");
    Ok(ExitCode::SUCCESS)
}

fn init(arguments: &Init) -> Result<String, CertsError> {
    let folder = &arguments.folder;
    let (authority, certificate) = Authority::make(&arguments.name, arguments.days)?;
    files::make_folder(folder)?;
    files::keep(&authority, &certificate, folder)?;
    Ok(format!(
        "{}: the authority's certificate, for all members of the group\n\
         {}: its key. Whoever has it can let anybody in: it stays here\n",
        folder.join(CERTIFICATE).display(),
        folder.join(authority::KEY).display()
    ))
}

fn issue(arguments: &Issue) -> Result<String, CertsError> {
    let authority = Authority::load(&arguments.folder)?;
    let bearers = bearers(arguments)?;
    let out = arguments.out.as_ref().unwrap_or(&arguments.folder);
    files::make_folder(out)?;
    let folder = Folder::lock(out)?;
    // First all that may be wrong, then the first file.
    for (stem, bearer) in &bearers {
        check_free(&folder, stem, bearer)?;
    }
    hand_out(&authority, &arguments.folder, out, &folder)?;
    let mut said = String::new();
    for (stem, bearer) in &bearers {
        let pair = authority.issue(bearer, stem, arguments.days)?;
        folder.write(stem, &pair)?;
        said += &format!(
            "{}, {}: {}, until {}\n",
            folder.certificate(stem).display(),
            folder.key(stem).display(),
            meaning(&bearer.uris()),
            moment::spoken(pair.ends)
        );
    }
    Ok(said)
}

/// Whom to issue for, and what their files are called.
fn bearers(arguments: &Issue) -> Result<Vec<(String, Bearer)>, CertsError> {
    let stem = arguments.stem.as_ref();
    stem.map_or(Ok(()), |stem| check_name(stem))?;
    let called = |otherwise: &str| stem.cloned().unwrap_or_else(|| otherwise.to_owned());
    if arguments.observer {
        return Ok(vec![(called("observer"), Bearer::Observer)]);
    }
    if arguments.any_worker {
        return Ok(vec![(called("any-worker"), Bearer::AnyWorker)]);
    }
    let mut names = arguments.worker.clone();
    names.sort_unstable();
    names.dedup();
    if let Some(stem) = stem {
        return Ok(vec![(stem.clone(), Bearer::workers(names)?)]);
    }
    let own = |name: String| Ok((name.clone(), Bearer::workers(vec![name])?));
    names.into_iter().map(own).collect()
}

/// An error unless these files are not there, or are this bearer's already.
fn check_free(folder: &Folder, stem: &str, bearer: &Bearer) -> Result<(), CertsError> {
    let (path, key) = (folder.certificate(stem), folder.key(stem));
    let for_another = |path: &Path| CertsError::ForAnother {
        path: path.into(),
        wanted: meaning(&bearer.uris()),
    };
    if !path.exists() && path.ends_with(CERTIFICATE) {
        return Err(CertsError::AuthoritysName { path });
    }
    if !path.exists() {
        // A key that belongs to nothing is somebody else's: of a pair, the certificate is written first.
        return match key.exists() {
            true => Err(for_another(&key)),
            false => Ok(()),
        };
    }
    let is_theirs = |found: &Found| !found.is_authority && found.uris == bearer.uris();
    match found::certificates(&path) {
        Ok(found) if found.first().is_some_and(is_theirs) => Ok(()),
        Err(error @ CertsError::Read { .. }) => Err(error),
        _ => Err(for_another(&path)),
    }
}

/// Sees to it that the authority's certificate is there, too.
fn hand_out(
    authority: &Authority,
    from: &Path,
    out: &Path,
    folder: &Folder,
) -> Result<(), CertsError> {
    let (issuing, path) = (from.join(CERTIFICATE), out.join(CERTIFICATE));
    if !path.exists() {
        let text = found::read(&issuing).map_err(CertsError::read(&issuing))?;
        return folder.write_authority(&text);
    }
    match authority.is_among(&found::certificates(&path)?) {
        true => Ok(()),
        false => Err(CertsError::OtherAuthority { path, issuing }),
    }
}

fn show(arguments: &Show) -> Result<String, CertsError> {
    let now = moment::now();
    let described = found::certificates(&arguments.file)?
        .into_iter()
        .map(|found| {
            let who = match found.is_authority {
                true => format!(
                    "authority {}{}",
                    found.subject.escape_debug(),
                    key(found.key_id.as_ref())
                ),
                false => meaning(&found.uris),
            };
            let until = match found.ends <= now {
                true => format!("ended on {}", moment::spoken(found.ends)),
                false if found.begins > now => format!(
                    "counts from {} until {}",
                    moment::spoken(found.begins),
                    moment::spoken(found.ends)
                ),
                false => format!("until {}", moment::spoken(found.ends)),
            };
            let signed_by = match found.issuers_key_id.as_ref() {
                None if found.is_authority && found.issuer == found.subject => "itself".to_owned(),
                id => format!("{}{}", found.issuer.escape_debug(), key(id)),
            };
            format!("{who}, {until}, signed by {signed_by}\n")
        });
    Ok(described.collect())
}

/// By which key an authority can be told from another of the same name.
fn key(id: Option<&String>) -> String {
    id.map_or(String::new(), |id| format!(" (key {id})"))
}

/// Who somebody with these names is, in words.
fn meaning(uris: &[String]) -> String {
    let known: Vec<String> = uris.iter().filter_map(|uri| bearer::meaning(uri)).collect();
    match known.is_empty() {
        true => "nobody whom farref knows".to_owned(),
        false => known.join(", "),
    }
}
