"""The log-in form: one page without a script, so that nothing else has to be public."""

import html
import secrets

from starlette.responses import HTMLResponse

_STYLE = """
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; display: grid; place-items: center; min-height: 90vh; margin: 0 1rem; }
form { width: 100%; max-width: 22rem; }
h1 { font-size: 1.25rem; }
input, button { box-sizing: border-box; width: 100%; font: inherit; padding: .5rem .75rem; margin: .25rem 0 .75rem; }
.problem { color: light-dark(#a40000, #ff9d9d); }
"""


def login_form(target: str, problem: str = "", status: int = 200) -> HTMLResponse:
    """The form; ``target`` is the local path to go on to."""
    nonce = secrets.token_urlsafe(16)
    said = f'<p class="problem" role="alert">{html.escape(problem)}</p>' if problem else ""
    page = f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Log in - CaBaFL watch</title>
<style nonce="{nonce}">{_STYLE}</style>
</head>
<body>
<form method="post" action="/login">
<h1>CaBaFL watch</h1>
{said}
<label for="secret">Token or password</label>
<input id="secret" name="secret" type="password" autocomplete="current-password" required autofocus>
<input type="hidden" name="next" value="{html.escape(local_path(target))}">
<button type="submit">Log in</button>
</form>
</body>
</html>
"""
    policy = (
        f"default-src 'none'; style-src 'nonce-{nonce}'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    )
    return HTMLResponse(page, status, {"Content-Security-Policy": policy})


def local_path(target: str) -> str:
    """``target`` if it is a path of this server, else the start page: no log-in leads to another site."""
    plain = target.startswith("/") and not target.startswith(("//", "/\\", "/login", "/api/"))
    return target if plain and target.isprintable() and "\\" not in target else "/"
