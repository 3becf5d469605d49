/** `floor KEY CERT PORT`: the least that such a proxy does in Node: ends TLS, and sends each request on; prints its port. */
import { readFileSync } from 'node:fs';
import { Agent, createServer, request as send } from 'node:https';
import type { AddressInfo } from 'node:net';

const [keyPath = '', certPath = '', port = ''] = process.argv.slice(2);
const [key, cert] = [readFileSync(keyPath), readFileSync(certPath)];
const agent = new Agent({ keepAlive: true, rejectUnauthorized: false });
const server = createServer({ key, cert, keepAliveTimeout: 60_000 }, (request, response) => {
  const { method, url: path, headers } = request;
  const upstream = send({ agent, host: '127.0.0.1', port, method, path, headers }, (answer) => {
    response.writeHead(answer.statusCode ?? 502, answer.headers);
    answer.pipe(response);
  });
  request.pipe(upstream);
});
server.listen(0, '127.0.0.1', () => console.log((server.address() as AddressInfo).port));
