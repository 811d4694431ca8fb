#!/usr/bin/env python3
"""The bill of materials of an image, as SPDX 2.3 JSON on standard output.

usage: sbom.py --version V --variant cpu|cuda --contents FILE ROOT...

Reads what deploy/image/assemble.sh laid down: dpkg status files under var/lib/dpkg/status.d and wheel metadata under
usr/lib/syncopate of the ROOTs, and FILE, whose lines are "path in the image<TAB>package that it comes from". The same
input gives the same bytes; the time in it is SOURCE_DATE_EPOCH (0 without it).
"""

import argparse
import datetime
import email.parser
import hashlib
import json
import os
import pathlib
import re
import sys
import urllib.parse


def spdx_id(*parts):
    text = "-".join(part.strip("/") for part in parts).replace("+", "plus")
    return "SPDXRef-" + re.sub(r"[^A-Za-z0-9.-]", "-", text)


def licence_of(metadata):
    """The licence expression of a wheel, where it is one that SPDX knows for sure."""
    return metadata.get("License-Expression") or "NOASSERTION"


def debian_package(fields, distribution):
    name, version = fields["Package"], fields["Version"]
    return {
        "SPDXID": spdx_id("deb", name),
        "name": name,
        "versionInfo": version,
        "supplier": "Organization: " + distribution.title(),
        "downloadLocation": "NOASSERTION",
        "licenseConcluded": "NOASSERTION",
        "licenseDeclared": "NOASSERTION",
        "copyrightText": "NOASSERTION",
        "comment": f"licence text: /usr/share/doc/{name}/copyright",
        "primaryPackagePurpose": "LIBRARY",
        "externalRefs": [package_url("deb", f"{distribution}/{name}", version, f"?arch={fields['Architecture']}")],
    }


def wheel_package(metadata):
    name, version = metadata["Name"], metadata["Version"]
    return {
        "SPDXID": spdx_id("pypi", name),
        "name": name,
        "versionInfo": version,
        "supplier": "NOASSERTION",
        "downloadLocation": f"https://pypi.org/project/{name}/{version}/",
        "licenseConcluded": "NOASSERTION",
        "licenseDeclared": licence_of(metadata),
        "copyrightText": "NOASSERTION",
        "primaryPackagePurpose": "LIBRARY",
        "externalRefs": [package_url("pypi", name.lower().replace("_", "-"), version)],
    }


def own_package(version, variant):
    return {
        "SPDXID": spdx_id("syncopate"),
        "name": "syncopate",
        "versionInfo": version,
        "supplier": "NOASSERTION",
        "downloadLocation": "NOASSERTION",
        "licenseConcluded": "NOASSERTION",
        "licenseDeclared": "NOASSERTION",
        "copyrightText": "NOASSERTION",
        "comment": f"variant {variant}",
        "primaryPackagePurpose": "APPLICATION",
        "externalRefs": [package_url("generic", "syncopate", version)],
    }


def package_url(kind, name, version, qualifiers=""):
    return {
        "referenceCategory": "PACKAGE-MANAGER",
        "referenceType": "purl",
        "referenceLocator": f"pkg:{kind}/{name}@{urllib.parse.quote(version, safe='')}{qualifiers}",
    }


def read_packages(roots, distribution):
    """What the image's files come from: name as in the contents file -> SPDX package."""
    packages = {}
    for root in roots:
        for status in sorted(root.glob("var/lib/dpkg/status.d/*")):
            fields = email.parser.Parser().parsestr(status.read_text())
            packages[fields["Package"]] = debian_package(fields, distribution)
        for wheel in sorted(root.glob("usr/lib/syncopate/*.dist-info")):
            metadata = email.parser.Parser().parsestr((wheel / "METADATA").read_text())
            packages[wheel.name] = wheel_package(metadata)
    return packages


def read_file(roots, path):
    """The SPDX file at an absolute path of the image."""
    for root in roots:
        if (root / path[1:]).is_file():
            break
    else:
        sys.exit(f"sbom: the contents name {path}, which is in none of the folders")
    digests = {"SHA1": hashlib.sha1(), "SHA256": hashlib.sha256()}
    with open(root / path[1:], "rb") as stream:
        while block := stream.read(1 << 20):
            for digest in digests.values():
                digest.update(block)
    return {
        "SPDXID": spdx_id("file", path),
        "fileName": "." + path,
        "fileTypes": ["BINARY"],
        "checksums": [{"algorithm": name, "checksumValue": value.hexdigest()} for name, value in digests.items()],
        "licenseConcluded": "NOASSERTION",
        "copyrightText": "NOASSERTION",
    }


def analyse(package, files):
    """Says of a package that these of its files, and no others, are in the image."""
    package["filesAnalyzed"] = bool(files)
    if files:
        sha1s = sorted(digest["checksumValue"] for file in files for digest in file["checksums"][:1])
        code = hashlib.sha1("".join(sha1s).encode()).hexdigest()
        package["packageVerificationCode"] = {"packageVerificationCodeValue": code}


def own_licences(roots, packages):
    """The texts of licences that SPDX does not list, which wheels refer to."""
    texts = {}
    for root in roots:
        for wheel in sorted(root.glob("usr/lib/syncopate/*.dist-info")):
            for reference in re.findall(r"LicenseRef-[A-Za-z0-9.-]+", packages[wheel.name]["licenseDeclared"]):
                files = sorted(path for path in wheel.rglob("*") if path.is_file() and path.name != "METADATA")
                texts[reference] = "\n".join(path.read_text(errors="replace") for path in files) or "NOASSERTION"
    return [{"licenseId": reference, "extractedText": text} for reference, text in sorted(texts.items())]


def distribution_of(roots):
    for root in roots:
        release = root / "etc/os-release"
        if release.is_file():
            return re.search(r'^ID="?([a-z]+)', release.read_text(), re.MULTILINE)[1]
    sys.exit("sbom: no etc/os-release in any of the folders")


def relationship(element, kind, related):
    return {"spdxElementId": element, "relationshipType": kind, "relatedSpdxElement": related["SPDXID"]}


def document(arguments):
    roots = arguments.root
    packages = {"syncopate": own_package(arguments.version, arguments.variant)}
    packages |= read_packages(roots, distribution_of(roots))
    files = {name: [] for name in packages}
    relationships = [relationship("SPDXRef-DOCUMENT", "DESCRIBES", packages["syncopate"])]
    relationships += [relationship(packages["syncopate"]["SPDXID"], "DEPENDS_ON", package)
                      for name, package in packages.items() if name != "syncopate"]
    for line in arguments.contents.read_text().splitlines():
        path, owner = line.split("\t")
        owner = owner.split(":")[0]  # dpkg's "libc6:amd64"
        if owner not in packages:
            sys.exit(f"sbom: {path} comes from {owner}, which has left no metadata")
        files[owner].append(read_file(roots, path))
    for name, package in packages.items():
        analyse(package, files[name])
        relationships += [relationship(package["SPDXID"], "CONTAINS", file) for file in files[name]]
    files = [file for name in packages for file in files[name]]

    content = json.dumps([list(packages.values()), files], sort_keys=True).encode()
    name = f"syncopate-{arguments.version}-{arguments.variant}"
    created = datetime.datetime.fromtimestamp(int(os.environ.get("SOURCE_DATE_EPOCH", "0")), datetime.timezone.utc)
    return {
        "spdxVersion": "SPDX-2.3",
        "dataLicense": "CC0-1.0",
        "SPDXID": "SPDXRef-DOCUMENT",
        "name": name,
        "documentNamespace": f"https://spdx.org/spdxdocs/{name}-{hashlib.sha256(content).hexdigest()[:32]}",
        "creationInfo": {
            "created": created.strftime("%Y-%m-%dT%H:%M:%SZ"),
            "creators": [f"Tool: syncopate-sbom-{arguments.version}"],
        },
        "hasExtractedLicensingInfos": own_licences(roots, packages),
        "packages": list(packages.values()),
        "files": files,
        "relationships": relationships,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--version", required=True)
    parser.add_argument("--variant", required=True)
    parser.add_argument("--contents", required=True, type=pathlib.Path)
    parser.add_argument("root", nargs="+", type=pathlib.Path)
    json.dump(document(parser.parse_args()), sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main()
