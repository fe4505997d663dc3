"""The files of the pages: what is shipped, how it is named, and that it keeps its own content policy."""

from __future__ import annotations

import re

import pytest

from edge.web.answers import CONTENT_SECURITY_POLICY
from edge.web.assets import load_assets

ASSETS = load_assets()
SCRIPTS = sorted(name for name in ASSETS.by_name if name.endswith(".js"))
IMPORT = re.compile(r'^(?:import|\}).*from "([^"]+)";$', re.MULTILINE)


def test_the_version_is_in_every_path_and_the_same_each_time() -> None:
    assert re.fullmatch(r"[0-9a-f]{16}", ASSETS.version)
    assert ASSETS.path("app.css") == f"/assets/{ASSETS.version}/app.css"
    assert load_assets() == ASSETS
    with pytest.raises(KeyError):
        ASSETS.path("nothing.js")


def test_each_kind_of_file_has_its_media_type_and_its_own_etag() -> None:
    assert ASSETS.by_name["app.css"].content_type == "text/css; charset=utf-8"
    assert ASSETS.by_name["api.js"].content_type == "text/javascript; charset=utf-8"
    assert len({asset.etag for asset in ASSETS.by_name.values()}) == len(ASSETS.by_name)
    assert set(ASSETS.templates) == {"layout", "run", "playground", "prediction", "not_found"}


@pytest.mark.parametrize("name", SCRIPTS)
def test_modules_import_only_what_is_shipped(name: str) -> None:
    imported = IMPORT.findall(ASSETS.by_name[name].body.decode())
    assert all(path.startswith("./") and path[2:] in ASSETS.by_name for path in imported)


@pytest.mark.parametrize("name", SCRIPTS)
def test_no_script_takes_text_for_markup_or_code(name: str) -> None:
    source = ASSETS.by_name[name].body.decode()
    for way in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "DOMParser", "eval("):
        assert way not in source
    assert "new Function" not in source and "localStorage" not in source


@pytest.mark.parametrize("name", sorted(ASSETS.templates))
def test_no_shell_has_anything_inline_or_from_elsewhere(name: str) -> None:
    shell = ASSETS.templates[name]
    assert not re.search(r"<style|\sstyle=|\son[a-z]+=|javascript:", shell)
    assert not re.search(r"""(?:src|href|action)=["'](?:https?:)?//""", shell)
    assert all("src=" in tag for tag in re.findall(r"<script[^>]*>", shell))


def test_the_style_loads_nothing() -> None:
    assert not re.search(r"url\(|@import|@font-face", ASSETS.by_name["app.css"].body.decode())


def test_the_policy_allows_this_origin_and_nothing_else() -> None:
    directives = dict(part.strip().split(" ", 1) for part in CONTENT_SECURITY_POLICY.split(";"))
    assert directives == {
        "default-src": "'none'",
        "script-src": "'self'",
        "style-src": "'self'",
        "connect-src": "'self'",
        "img-src": "'self' data:",
        "base-uri": "'none'",
        "form-action": "'self'",
        "frame-ancestors": "'none'",
    }
