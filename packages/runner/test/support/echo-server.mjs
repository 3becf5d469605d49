/** `echo-server KEY CERT`: answers HTTPS at 443 and HTTP at 8080 with what it was sent, as JSON. Redirects and a repository beside it. */
import { readFileSync } from 'node:fs';
import { createServer } from 'node:http';
import { createServer as createSecureServer } from 'node:https';

const [key, cert] = process.argv.slice(2).map((path) => readFileSync(path));
const COMMIT = 'c0ffee'.repeat(7).slice(0, 40);

async function answer(request, response) {
  let body = '';
  for await (const chunk of request.setEncoding('latin1')) body += chunk;
  const { url, headers } = request;
  if (url.startsWith('/redirect')) {
    response.writeHead(302, { location: `https://other.example/?from=${encodeURIComponent(headers['x-key'])}` }).end();
  } else if (url.startsWith('/repo')) {
    if (headers.authorization === undefined) response.writeHead(401, { 'www-authenticate': 'Basic realm="git"' }).end();
    else if (!Buffer.from(headers.authorization.slice(6), 'base64').toString().endsWith('-4d7a')) response.writeHead(403).end();
    else response.end(`${COMMIT}\trefs/heads/main\n`);
  } else {
    response.end(JSON.stringify({ url, body, host: headers.host, key: headers['x-key'], seen: headers['x-key']?.length }));
  }
}
createServer(answer).listen(8080);
createSecureServer({ key, cert }, answer).listen(443, () => console.log('ready'));
