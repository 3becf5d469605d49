/** `server KEY CERT`: the server that secrets are sent to; prints its port. */
import { readFileSync } from 'node:fs';
import { createServer } from 'node:https';
import type { AddressInfo } from 'node:net';

const [key, cert] = process.argv.slice(2).map((path) => readFileSync(path));
const BODY = Buffer.alloc(1024, 'x');
const server = createServer({ key, cert, keepAliveTimeout: 60_000 }, (request, response) => {
  request.resume();
  response.setHeader('content-length', BODY.length).end(BODY);
});
server.listen(0, '127.0.0.1', () => console.log((server.address() as AddressInfo).port));
