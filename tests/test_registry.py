"""Registry and grammar: names, close matches, two owners of one name, broken plugins, values that cannot be mistaken."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import fairssl_plugins
import pytest
from reference.command import fairssl
from reference.plugin_package import OBJECTIVE, known, write_package

from fairssl import api, kinds, registry, scoring
from fairssl.cli import run
from fairssl.registry import first_sentence
from fairssl.spec.method import encoder_spec, method_spec, parse_method
from fairssl.types import KINDS, Method, UserError, counted

HEAD = (Path(fairssl_plugins.__file__).parent / "heads" / "ccl.py").read_text(encoding="utf-8")
METHOD = '''"""A method file."""
from fairssl.api import Method
METHOD = Method(summary="s", paper="p", objective={objective!r}, heads={heads!r}, aliases={aliases!r})
'''


def method_file(objective: str = "simclr", heads: dict | None = None, aliases: tuple = ()) -> str:
    return METHOD.format(objective=objective, heads=heads or {}, aliases=aliases)


@pytest.fixture
def strangers(tmp_path):
    """Write packages by name -> files, and make them known for the test."""
    stack = []

    def add(**packages):
        roots = []
        for name, files in packages.items():
            root = tmp_path / name
            write_package(root, name.replace("_", "-"), files)
            roots.append(root)
        context = known(*roots)
        context.__enter__()
        stack.append(context)

    yield add
    for context in reversed(stack):
        context.__exit__(None, None, None)


@pytest.mark.parametrize("kind", kinds.registries)
def test_every_kind_is_found_in_singular_and_plural(kind):
    assert kinds.by_kind(kind) is kinds.by_kind(kind.removesuffix("s")) is kinds.registries[kind]
    assert kinds.registries[kind].where()


def test_an_unknown_kind_and_an_unknown_name_say_what_is_near():
    with pytest.raises(UserError, match=r"unknown kind 'objektive'; did you mean 'objectives'"):
        kinds.by_kind("objektive")
    with pytest.raises(UserError, match=r"unknown head 'adversari'; did you mean 'adversary'.*known: .*ccl"):
        kinds.heads.get("adversari")
    with pytest.raises(UserError, match=r"unknown method 'byol\+adversry:1'.*did you mean 'adversary'"):
        parse_method("byol+adversry:1")


def test_where_imports_nothing(strangers):
    strangers(loud={"heads/shout.py": "raise SystemError('imported')\n"})
    assert kinds.heads.where()["shout"] == "loud.heads.shout"


def test_files_with_a_leading_underscore_are_no_plugins(strangers):
    strangers(hidden={"heads/_shared.py": "", "heads/shown.py": HEAD})
    assert "shown" in kinds.heads.where() and "_shared" not in kinds.heads.where()


def test_a_name_that_two_packages_offer_is_an_error_with_both_and_the_way_out(strangers):
    strangers(one={"heads/twin.py": HEAD}, two={"heads/twin.py": HEAD})
    with pytest.raises(
        UserError, match=r"one \(one\.heads\.twin\) and two \(two\.heads\.twin\); write one:twin or two:"
    ):
        kinds.heads.get("twin")
    assert kinds.heads.get("one:twin").__module__ == "one.heads.twin"
    assert {"one:twin", "two:twin"} <= {*kinds.heads.where()} and "twin" not in kinds.heads.where()


def test_a_built_in_method_cannot_be_shadowed(strangers):
    strangers(rival={"methods/simclr.py": method_file("byol")})
    with pytest.raises(UserError, match=r"method 'simclr' is offered by fairssl .* and rival"):
        parse_method("simclr")  # there is an objective of that name, which must not be taken silently
    assert parse_method("rival:simclr").objective == "byol"
    assert parse_method("fairssl:simclr").objective == "simclr"
    assert list(parse_method("fairssl:simclr+ccl:0.5").heads) == ["ccl"]


def test_package_and_name_in_the_grammar(strangers):
    strangers(rival={"heads/ccl.py": HEAD, "objectives/agree.py": OBJECTIVE})
    with pytest.raises(UserError, match=r"head 'ccl' is offered by fairssl .* and rival"):
        parse_method("byol+ccl:0.5")
    assert parse_method("byol+rival:ccl:0.5").heads == {"rival:ccl": {"weight": "0.5"}}
    assert parse_method("byol+rival:ccl").heads == {"rival:ccl": {}}
    spec = method_spec("rival:agree+rival:ccl:0.5", {"rival:ccl": {"temperature": "0.2"}, "agree": {"scale": "2"}})
    assert spec.objective.name == "agree", "a name that one package offers has its short spelling in a key"
    assert spec.objective.params["scale"] == 2.0
    assert (spec.heads[0].name, spec.heads[0].params) == ("rival:ccl", {"weight": 0.5, "temperature": 0.2})


def test_two_spellings_are_one_composition():
    plain, long = (method_spec(text, {}) for text in ("byol+ccl:0.5", "fairssl:byol+fairssl:ccl:0.5"))
    assert plain.model_copy(update={"name": ""}) == long.model_copy(update={"name": ""})
    assert encoder_spec("fairssl:small_cnn", {}) == encoder_spec("small_cnn", {})


def test_a_method_file_means_the_parts_of_its_own_package(strangers):
    strangers(rival={"heads/ccl.py": HEAD, "methods/mine.py": method_file(heads={"ccl": {}})})
    assert list(parse_method("mine").heads) == ["rival:ccl"]
    assert list(parse_method("simclr_ccl").heads) == ["fairssl:ccl"]


def test_an_alias_of_two_methods_is_an_error(strangers):
    strangers(rival={f"methods/{n}.py": method_file(aliases=("nick",)) for n in ("first", "second")})
    with pytest.raises(UserError, match=r"'nick' is an alias of first and of second"):
        parse_method("nick")
    assert isinstance(parse_method("first"), Method)


EXIT = "import sys\nsys.exit(3)\n"
BROKEN = {
    "heads/import_error.py": '"""Doc."""\nimport no_such_library_anywhere\n',
    "heads/syntax_error.py": '"""Doc."""\ndef broken(:\n',
    "heads/api_error.py": '"""Doc."""\nfrom fairssl.api import NoSuchThing\n',
    "heads/fine.py": HEAD,
    "methods/bad_method.py": "raise RuntimeError('no licence file')\n",
    "encoders/bad_encoder.py": "import no_such_library_anywhere\n",
}


def test_list_shows_broken_plugins_with_their_cause_and_the_others_as_ever(strangers, capsys):
    strangers(ill=BROKEN)
    assert run(["list", "heads", "--json"]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert "no_such_library_anywhere" in rows["import_error"]["broken"]
    assert "SyntaxError" in rows["syntax_error"]["broken"]
    assert "NoSuchThing" in rows["api_error"]["broken"]
    assert rows["fine"]["broken"] is None and rows["adversary"]["broken"] is None
    assert run(["list", "methods"]) == 0
    line = next(x for x in capsys.readouterr().out.splitlines() if x.startswith("bad_method"))
    assert "RuntimeError: no licence file" in line


@pytest.mark.parametrize(
    ("method", "cause"),
    [
        ("bad_method", "RuntimeError: no licence file"),
        ("byol+import_error", "No module named 'no_such_library_anywhere'"),
        ("byol+syntax_error", "SyntaxError"),
    ],
)
def test_bench_with_a_broken_plugin_fails_with_its_cause(strangers, capsys, method, cause):
    strangers(ill=BROKEN)
    assert run(["bench", "--method", method, "--dataset", "colored_digits", "--dry-run"]) == 2
    said = capsys.readouterr().err
    assert cause in said and "Traceback" not in said and said.count("\n") == 1


def test_a_broken_plugin_stands_in_nobody_elses_way(strangers):
    strangers(ill=BROKEN)
    assert parse_method("byol+ccl").objective == "byol"
    assert encoder_spec("resnet18", {}).name == "timm"
    with pytest.raises(UserError, match=r"unknown encoder 'resnet18b'.*bad_encoder.*no_such_library_anywhere"):
        encoder_spec("resnet18b", {})


def test_a_package_that_cannot_be_found_is_said(tmp_path, capsys):
    write_package(tmp_path, "ghost", {})
    shutil.rmtree(tmp_path / "ghost")
    with known(tmp_path):
        assert run(["list", "heads"]) == 0
        assert "plugin package ghost is broken: no import package 'ghost'" in capsys.readouterr().err
        with pytest.raises(UserError, match=r"unknown method 'spook'.*plugin package ghost is broken"):
            parse_method("spook")


def test_a_file_with_no_plugin_or_two_is_broken(strangers):
    two = HEAD.replace("class CCL", "class A") + "\n\n" + HEAD[HEAD.index("class CCL") :]
    strangers(odd={"heads/none.py": '"""Doc."""\n', "heads/both.py": two})
    with pytest.raises(registry.BrokenPlugin, match=r"exactly one public Head class, found none"):
        kinds.heads.get("none")
    with pytest.raises(registry.BrokenPlugin, match=r"found A, CCL"):
        kinds.heads.get("both")


def test_what_works_and_what_is_broken(strangers):
    strangers(ill=BROKEN | {"metrics/stops.py": "import sys\nsys.exit('not today')\n"})
    assert "fine" in kinds.heads.working() and "import_error" not in kinds.heads.working()
    assert {*kinds.heads.broken()} == {"import_error", "syntax_error", "api_error"}
    assert "SystemExit: not today" in kinds.metrics.broken()["stops"]
    assert "ED" in {one.symbol for one in scoring.columns()}, "a metric that is broken takes no other with it"


WITHOUT = {f"{kind}/{name}.py": text for kind in KINDS for name, text in (("zz_none", "x = 1\n"), ("zz_ends", EXIT))}


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_without_a_plugin_or_that_exits_is_listed_as_broken_as_doctor_and_check_call_it(tmp_path, kind):
    """By `fairssl` in a process of its own; an objective also as the method of its name."""
    write_package(tmp_path, "odd", WITHOUT)
    env = {"PYTHONPATH": str(tmp_path)}
    code, out, _ = fairssl("list", kind, "--json", env=env)
    rows = {row["name"]: row["broken"] for row in json.loads(out)}
    assert code == 0 and rows.pop("zz_ends").endswith("SystemExit: 3") and "must define " in rows.pop("zz_none")
    assert set(rows.values()) == {None}
    code, out, _ = fairssl("list", kind, env=env)
    lines = " ".join(out.split())
    assert code == 0 and lines.count("broken: ") == 2 and "SystemExit: 3" in lines
    code, out, err = fairssl("check", kind.removesuffix("s"), "zz_none", env=env)
    assert code != 0 and "must define " in out + err


def test_an_objectives_file_without_a_class_is_broken_among_the_methods_too(tmp_path):
    write_package(tmp_path, "odd", {"objectives/zz_none.py": "x = 1\n", "objectives/zz_ends.py": EXIT})
    code, out, _ = fairssl("list", "methods", "--json", env={"PYTHONPATH": str(tmp_path)})
    rows = {row["name"]: row["broken"] for row in json.loads(out)}
    assert code == 0 and "found none" in rows["zz_none"] and rows["zz_ends"] == "SystemExit: 3"


LOOKS = {
    "made": "from fairssl.api import Head\nMade = type('Made', (Head,), {})\n",
    "below": "from fairssl.api import Head\nif True:\n    class Below(Head):\n        pass\n",
    "further": "from fairssl_plugins.heads.ccl import CCL\nclass Further(CCL):\n    pass\n",
    "between": "from fairssl.api import Head\nclass _Base(Head):\n    pass\nclass Between(_Base):\n    pass\n",
    "config": "from fairssl.api import PluginConfig\nclass Config(PluginConfig):\n    pass\n",
    "hidden": "from fairssl.api import Head\nclass _Hidden(Head):\n    pass\n",
    "taken": "from fairssl_plugins.heads.ccl import CCL\n",
    "two": "from fairssl.api import Head\nclass A(Head):\n    pass\nclass B(Head):\n    pass\n",
    "perhaps": "import sys\nfrom fairssl.api import Head\nif not sys.path:\n    raise OSError\nclass Perhaps(Head):\n    pass\n",
    "raises": "raise OSError('no model file')\n",
}


def test_what_the_text_of_a_file_tells_is_what_its_import_tells(strangers):
    strangers(looks={f"heads/{name}.py": text for name, text in LOOKS.items()})
    said = {name: cause for name, cause in kinds.heads.broken().items() if name in LOOKS}
    for name in LOOKS:
        place = kinds.heads.locate(name)
        found = registry.fault(place.path, "heads", place.module)
        assert (found is None) == (name not in said), name
        assert found is None or found in said[name], "the same words"
    assert set(said) == {"config", "hidden", "taken", "two", "raises"}


@pytest.mark.parametrize("kind", KINDS)
def test_no_plugin_that_works_is_called_broken(kind):
    one = kinds.registries[kind]
    for name in one.working():
        place = one.locate(name)
        assert registry.fault(place.path, kind, place.module) is None


@pytest.mark.parametrize(
    ("declared", "why"),
    [
        ("FAIRSSL_INTERFACE = 1\n", None),
        ("FAIRSSL_INTERFACE: int = 1\n", None),
        ("", None),
        ("FAIRSSL_INTERFACE = 2\n", "it needs plugin interface 2 and this fairssl has 1: pip install -U fairssl"),
        ("FAIRSSL_INTERFACE = 0\n", "it was written for plugin interface 0 and this fairssl serves 1 to 1"),
        ("FAIRSSL_INTERFACE = '1'\n", "FAIRSSL_INTERFACE must be a whole number written out"),
        ("FAIRSSL_INTERFACE = True\n", "FAIRSSL_INTERFACE must be a whole number written out"),
        ("FAIRSSL_INTERFACE =\n", "SyntaxError"),
    ],
)
def test_a_package_that_needs_another_interface_is_refused_and_not_imported(strangers, declared, why):
    strangers(other={"__init__.py": f"{declared}raise RuntimeError('imported')\n", "heads/shown.py": HEAD})
    assert api.INTERFACE == registry.INTERFACE == 1 >= api.OLDEST_INTERFACE
    (package,) = (one for one in registry.packages() if one.name == "other")
    if why is None:
        assert package.fault is None and "shown" in kinds.heads.where()
        return
    assert package.fault is not None and why in package.fault and "shown" not in kinds.heads.where()
    with pytest.raises(UserError, match=r"unknown head 'shown'.*plugin package other is broken"):
        kinds.heads.get("shown")


def test_the_plugins_of_another_checkout_are_named_and_not_read(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert registry.unseen_plugins() == "" == registry.absence_hint()
    for kind in KINDS:
        (tmp_path / "plugins" / kind).mkdir(parents=True)
    (tmp_path / "plugins" / "heads" / "mine.py").write_text("raise SystemExit('imported')\n")
    assert f"pip install -e {tmp_path}" in registry.unseen_plugins()
    with pytest.raises(
        UserError, match=rf"unknown head 'mine'.*{tmp_path}/plugins is not read: .* copy with its plugins"
    ):
        kinds.heads.get("mine")
    assert registry.unseen_plugins(Path(fairssl_plugins.__file__).parent.parent) == "", "what is installed is read"


def test_a_misspelt_parameter_is_refused_with_the_near_one():
    with pytest.raises(UserError, match=r"vicreg has no parameter 'varance'; did you mean 'variance'"):
        method_spec("vicreg", {"vicreg": {"varance": "3"}})
    with pytest.raises(UserError, match=r"adversary has no parameter 'alfa'; did you mean 'alpha'"):
        method_spec("sofclr", {"adversary": {"alfa": "3"}})


@pytest.mark.parametrize("text", ["False", "false", "0", "no", "off", "f"])
def test_a_boolean_written_false_is_false(text):
    assert method_spec("simclr", {"simclr": {"loss_scale_tau": text}}).objective.params["loss_scale_tau"] is False


@pytest.mark.parametrize("text", ["nope", "", "None", "falsch", "2", "[]"])
def test_what_is_no_boolean_is_refused(text):
    with pytest.raises(UserError, match=r"simclr\.loss_scale_tau.*got"):
        method_spec("simclr", {"simclr": {"loss_scale_tau": text}})


@pytest.mark.parametrize("text", ["True", "true", "1", "yes", "on"])
def test_a_boolean_written_true_is_true(text):
    assert method_spec("simclr", {"simclr": {"loss_scale_tau": text}}).objective.params["loss_scale_tau"] is True


def test_set_reaches_a_part_by_either_spelling_and_not_by_both():
    by_alias, by_name = (method_spec("sofclr", {"adversary": {key: "0.3"}}) for key in ("alpha", "weight"))
    assert by_alias == by_name and by_name.heads[0].params["weight"] == 0.3
    with pytest.raises(UserError, match=r"adversary.weight is set twice"):
        method_spec("sofclr", {"adversary": {"alpha": "0.3", "weight": "0.3"}})


SCRIPT = """
import contextlib, io, json, shutil, sys
from fairssl.cli import run
from fairssl.registry import first_sentence

def call(*args):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = run(list(args))
    return code, out.getvalue(), err.getvalue()

def names():
    return [row["name"] for kind in ("methods", "objectives") for row in json.loads(call("list", kind, "--json")[1])]

dry = ["bench", "--method", "vicreg", "--dataset", "colored_digits", "--seeds", "1", "--epochs", "1", "--json"]
dry += ["--dry-run", "--out", sys.argv[2]]
report = {"before": names().count("vicreg"), "refused": call(*dry)}
shutil.copy(sys.argv[1], "fairssl_plugins/objectives/vicreg.py")
report["after"] = names().count("vicreg")
report["planned"] = call(*dry, "--set", "vicreg.variance=5")
report["misspelt"] = call(*dry, "--set", "vicreg.varianz=5")
report["shown"] = call("show", "objective", "vicreg")
report["checked"] = call("check", "objective", "vicreg")
print(json.dumps(report))
"""


def test_vicreg_taken_away_and_put_back(tmp_path):
    """The plugins of a copy, without and then with one file: no other edit makes the method known everywhere."""
    shipped = Path(fairssl_plugins.__file__).parent
    shutil.copytree(shipped, tmp_path / "fairssl_plugins", ignore=shutil.ignore_patterns("__pycache__", "vicreg.py"))
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, str(script), str(shipped / "objectives" / "vicreg.py"), str(tmp_path / "runs")],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout.splitlines()[-1])
    assert (report["before"], report["after"]) == (0, 2)
    code, _, error = report["refused"]
    assert code == 2 and "unknown method 'vicreg'" in error
    code, out, _ = report["planned"]
    assert code == 0 and json.loads(out)["cells"] == 1
    code, _, error = report["misspelt"]
    assert code == 2 and "did you mean 'variance'" in error
    assert report["shown"][0] == 0 and "vicreg.variance = 25.0" in report["shown"][1]
    assert report["checked"][0] == 0 and "0 fail" in report["checked"][1], report["checked"][1]


@pytest.mark.parametrize(
    ("text", "sentence", "rest"),
    [
        ("One line.", "One line.", ""),
        ("One line. And more.\n\nRest.", "One line. And more.", "Rest."),
        ("A sentence that\ngoes on. And more.\n\nRest.", "A sentence that goes on.", "And more.\n\nRest."),
        ("No full stop\nat all", "No full stop at all", ""),
        ("", "", ""),
    ],
)
def test_a_docstring_begins_with_a_whole_sentence(text: str, sentence: str, rest: str) -> None:
    assert first_sentence(text) == (sentence, rest)


def test_show_probe_begins_with_a_whole_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["show", "probe"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("settings probe: Evaluation on frozen features.\n\nLinear: the paper's 20 epochs with")


def test_a_number_takes_its_noun_along() -> None:
    assert [counted(n, "image") for n in (0, 1, 2, 1200)] == ["0 images", "1 image", "2 images", "1,200 images"]
    assert [counted(n, "image is", "images are") for n in (1, 2)] == ["1 image is", "2 images are"]
