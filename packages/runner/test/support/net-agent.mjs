// Runs inside a network namespace and does what a test tells it, one JSON object a line: {id, op, ...} → {id, ...}.
import dgram from 'node:dgram';
import { Resolver } from 'node:dns/promises';
import net from 'node:net';
import readline from 'node:readline';

const open = new Map();
const operations = {
  // Connects, sends `text`, ends its side, answers with all that came back.
  // `base64`: bytes instead of text. `stay`: its side stays open.
  tcp: ({ host, port, text = '', base64, parts = 1, stay = false, from, wait = 30_000 }) =>
    new Promise((resolve) => {
      const socket = net.connect({ host, port, ...(from && { localAddress: from }) });
      let said = '';
      socket.setTimeout(wait, () => { resolve({ error: 'TIMEOUT' }); socket.destroy(); });
      socket.setEncoding('utf8').on('data', (chunk) => { said += chunk; });
      socket.on('connect', async () => {
        const bytes = base64 === undefined ? Buffer.from(text) : Buffer.from(base64, 'base64');
        socket.setNoDelay(true);
        const size = Math.ceil(bytes.length / parts) || 1;
        for (let at = 0; at < bytes.length; at += size) {
          socket.write(bytes.subarray(at, at + size));
          if (parts > 1) await new Promise((next) => setTimeout(next, 5));
        }
        if (!stay) socket.end();
      });
      socket.on('error', (error) => resolve({ error: error.code }));
      socket.on('close', () => resolve({ text: said }));
    }),
  // Says `text` to a server that greets and echoes, on one connection that stays open; answers when it is back.
  'tcp-echo': ({ host, port, text }) =>
    new Promise((resolve) => {
      const socket = open.get(`${host}:${port}`) ?? net.connect({ host, port });
      const isNew = !open.has(`${host}:${port}`);
      open.set(`${host}:${port}`, socket);
      let said = '';
      const onData = (chunk) => {
        said += chunk;
        if (isNew && said.endsWith('\n')) socket.write(text);
        if (!said.endsWith(text)) return;
        socket.off('data', onData);
        resolve({ text });
      };
      socket.on('data', onData);
      socket.on('error', (error) => resolve({ error: error.code }));
      socket.on('close', () => resolve({ error: 'CLOSED' }));
      if (!isNew) socket.write(text);
    }),
  // Answers every connection with '<name> <remote address>\n' and an echo.
  'tcp-server': ({ host, port, name }) =>
    new Promise((resolve, reject) => {
      const server = net.createServer({ allowHalfOpen: true }, (socket) => {
        socket.on('error', () => {});
        // Without a name the client speaks first.
        if (name !== '') socket.write(`${name} ${socket.remoteAddress}\n`);
        socket.pipe(socket);
      });
      server.on('error', reject);
      server.listen(port, host, () => resolve({ port: server.address().port }));
    }),
  udp: ({ host, port, text, from, wait = 30_000 }) =>
    new Promise((resolve) => {
      const socket = dgram.createSocket('udp4');
      const finish = (result) => { clearTimeout(timer); resolve(result); socket.close(); };
      const timer = setTimeout(() => finish({ error: 'TIMEOUT' }), wait);
      socket.on('error', (error) => finish({ error: error.code }));
      socket.on('message', (message) => finish({ text: message.toString() }));
      socket.bind(0, from, () => socket.connect(port, host, () => socket.send(text)));
    }),
  // Remembers what it gets ('udp-seen') and echoes it.
  'udp-server': ({ host, port }) =>
    new Promise((resolve, reject) => {
      const socket = dgram.createSocket('udp4');
      socket.on('error', reject);
      socket.on('message', (message, peer) => {
        seen.push({ text: message.toString(), from: peer.address, port: peer.port });
        socket.send(message, peer.port, peer.address);
      });
      socket.bind(port, host, () => resolve({ port: socket.address().port }));
    }),
  // Sends `packets` (base64) in turn to `ports` in turn from many sockets, as fast as it can, for a time.
  'udp-flood': async ({ host, ports, packets, sockets, ms }) => {
    const bytes = packets.map((text) => Buffer.from(text, 'base64'));
    const open = Array.from({ length: sockets }, () => dgram.createSocket('udp4').on('error', () => {}));
    const end = performance.now() + ms;
    let sent = 0;
    while (performance.now() < end) {
      for (let burst = 0; burst < 200; burst += 1, sent += 1) {
        open[sent % sockets].send(bytes[sent % bytes.length], ports[sent % ports.length], host, () => {});
      }
      await new Promise((resolve) => setImmediate(resolve));
    }
    for (const socket of open) socket.close();
    return { text: String(sent) };
  },
  'udp-seen': async () => ({ seen }),
  resolve: async ({ server = '172.16.0.1', name, type = 'A', wait = 30_000 }) => {
    const resolver = new Resolver({ timeout: wait, tries: 1 });
    resolver.setServers([server]);
    try {
      return { answers: await resolver.resolve(name, type) };
    } catch (error) {
      return { error: error.code };
    }
  },
};
const seen = [];

for await (const line of readline.createInterface({ input: process.stdin })) {
  const { id, op, ...parameters } = JSON.parse(line);
  const answer = (result) => process.stdout.write(`${JSON.stringify({ id, ...result })}\n`);
  operations[op](parameters).then(answer, (error) => answer({ failure: String(error) }));
}
