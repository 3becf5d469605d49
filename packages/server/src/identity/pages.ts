/** The pages of the development identity provider. All foreign text is escaped with `escape`. */

export function escape(text: string): string {
  return text.replaceAll(/[&<>"'`]/g, (char) => `&#${char.charCodeAt(0)};`);
}

/**
 * Nothing is loaded from anywhere; forms go to this provider, and from there back to a program on this machine.
 * The library's own pages have a script that sends a form; it adds the script's digest by itself.
 */
export const PAGE_HEADERS = {
  'content-type': 'text/html; charset=utf-8',
  'content-security-policy':
    "default-src 'none'; style-src 'unsafe-inline'; form-action 'self' http://127.0.0.1:* http://localhost:*; frame-ancestors 'none'; base-uri 'none'",
  'x-content-type-options': 'nosniff',
  'x-frame-options': 'DENY',
  // With `no-referrer`, browsers send forms with `Origin: null`, which is refused.
  'referrer-policy': 'same-origin',
  'cache-control': 'no-store',
} as const;

const STYLE = `
  :root { color-scheme: light dark; font: 16px/1.5 system-ui, sans-serif; }
  body { margin: 15vh auto; max-width: 22rem; padding: 0 1rem; }
  h1 { font-size: 1.25rem; }
  label { display: block; margin-top: 1rem; }
  input[type=email], input[type=text] { box-sizing: border-box; width: 100%; padding: .5rem; font: inherit; }
  button { margin-top: 1rem; padding: .5rem 1rem; font: inherit; }
  code { font-size: 1.5rem; letter-spacing: .1em; }
  .problem { color: #c22; }
  .note { font-size: .85rem; opacity: .75; }`;

/** @param body HTML, already escaped where it must be */
export function page(title: string, body: string): string {
  return `<!doctype html>
<html lang="en">
<head><meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>${escape(title)}</title>
<style>${STYLE}</style></head>
<body><h1>${escape(title)}</h1>
${body}
</body></html>
`;
}

export interface SignInForm {
  action: string;
  client: string;
  email?: string;
  name?: string;
  problem?: string;
}

export function signInPage({ action, client, email = '', name = '', problem }: SignInForm): string {
  return page(
    'Sign in to Releap',
    `${problem === undefined ? '' : `<p class="problem" role="alert">${escape(problem)}</p>`}
<form method="post" action="${escape(action)}">
<label>E-mail address <input type="email" name="email" value="${escape(email)}" maxlength="254" required autofocus autocomplete="email"></label>
<label>Name <input type="text" name="name" value="${escape(name)}" maxlength="128" autocomplete="name"></label>
<button type="submit">Sign in</button>
</form>
<p class="note">For ${escape(client)}. This is the development identity provider: it answers on this machine only, and believes
whatever you type. Set RELEAP_OIDC_ISSUER to use a real one.</p>`,
  );
}

/** @param form the library's form; its button is ours */
export function codePage(form: string, problem: string | undefined): string {
  return page(
    'Enter the code',
    `<p${problem === undefined ? '' : ' class="problem" role="alert"'}>${escape(problem ?? 'Type the code that your terminal shows.')}</p>
${form}
<button type="submit" form="op.deviceInputForm">Continue</button>`,
  );
}

export function confirmPage(form: string, client: string, code: string): string {
  return page(
    'Is this your code?',
    `<p>${escape(client)} asks to sign in, and shows this code:</p>
<p><code>${escape(code)}</code></p>
${form}
<button type="submit" form="op.deviceConfirmForm" autofocus>Yes, continue</button>
<button type="submit" form="op.deviceConfirmForm" name="abort" value="yes">No, stop</button>`,
  );
}

export function messagePage(title: string, text: string): string {
  return page(title, `<p>${escape(text)}</p>`);
}
