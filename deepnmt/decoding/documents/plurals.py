"""The plural forms of languages, as gettext's headers have them."""

from deepnmt.languages import base_language

_SLAVIC = "n%10>=2 && n%10<=4 && (n%100<10 || n%100>=20) ? 1 : 2);"
_FAMILIES = {
    "id ja km ko lo ms my th vi zh": "nplurals=1; plural=0;",
    "bg bn ca da de el en eo es et eu fi gl he hi hu it nb nl nn no pt sq sv ta ur": "nplurals=2; plural=(n != 1);",
    "fa fr tl tr": "nplurals=2; plural=(n > 1);",
    "be bs hr ru sr uk": f"nplurals=3; plural=(n%10==1 && n%100!=11 ? 0 : {_SLAVIC}",
    "cs sk": "nplurals=3; plural=(n==1 ? 0 : n>=2 && n<=4 ? 1 : 2);",
    "pl": f"nplurals=3; plural=(n==1 ? 0 : {_SLAVIC}",
    "is": "nplurals=2; plural=(n%10!=1 || n%100==11);",
    "lt": "nplurals=3; plural=(n%10==1 && n%100!=11 ? 0 : n%10>=2 && (n%100<10 || n%100>=20) ? 1 : 2);",
    "lv": "nplurals=3; plural=(n%10==1 && n%100!=11 ? 0 : n != 0 ? 1 : 2);",
    "ro": "nplurals=3; plural=(n==1 ? 0 : n==0 || (n%100>0 && n%100<20) ? 1 : 2);",
    "sl": "nplurals=4; plural=(n%100==1 ? 0 : n%100==2 ? 1 : n%100==3 || n%100==4 ? 2 : 3);",
    "ga": "nplurals=5; plural=(n==1 ? 0 : n==2 ? 1 : n<7 ? 2 : n<11 ? 3 : 4);",
    "ar": "nplurals=6; plural=(n==0 ? 0 : n==1 ? 1 : n==2 ? 2 : n%100>=3 && n%100<=10 ? 3 : n%100>=11 ? 4 : 5);",
}
_RULES = {language: rule for languages, rule in _FAMILIES.items() for language in languages.split()}


def plural_rule(language: str) -> str | None:
    """The value of Plural-Forms for a language, or None if it is not known here."""
    if language.replace("_", "-").lower() == "pt-br":
        return _RULES["fr"]
    return _RULES.get(base_language(language))
