/**
 * Transfers between a guest and a server behind the host, in a network namespace of its own: straight, to an address that the
 * egress policy lists, and through the egress proxy, to an address that a domain of it opened. Prints one JSON document a round.
 */
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { fileURLToPath } from 'node:url';
import { isolateNetwork } from '@releap/testing/isolated-network';
import { createInternet } from '../../packages/runner/test/support/namespaces.ts';
import { startNameServer } from '../../packages/runner/test/support/network-world.ts';
import { SPEC } from '../../packages/runner/test/support/sandbox-spec.ts';
import { TestRunner } from '../../packages/runner/test/support/sandboxes.ts';

isolateNetwork(fileURLToPath(import.meta.url));

const VM = '31111111-2222-4333-8444-0000000000b1';
const ADDRESSES = { straight: '203.0.113.3', proxied: '203.0.113.2' };
const {
  RELEAP_BENCH_FOLDER: folder = '',
  RELEAP_BENCH_MIB: mib = '32',
  RELEAP_BENCH_ROUNDS: rounds = '1',
} = process.env;

/** Sends a number of bytes to each client that writes, and discards what it receives. */
const SERVER = `
  const block = Buffer.alloc(1 << 20);
  require('net').createServer({ allowHalfOpen: true }, (socket) => {
    socket.on('error', () => {});
    socket.once('data', (first) => {
      if (first[0] === 0) return socket.resume().on('end', () => socket.end('done'));
      let left = ${Number(mib)};
      const send = () => { while (left-- > 0) if (!socket.write(block)) return socket.once('drain', send); socket.end(); };
      send();
    });
  }).listen(7000, () => console.log('ready'));`;

await using stack = new AsyncDisposableStack();
const internet = stack.use(await createInternet(`b${process.pid}-inet`));
const server = spawn('nsenter', [`--net=${internet.path}`, '--', process.execPath, '-e', SERVER], {
  stdio: ['ignore', 'pipe', 'inherit'],
});
internet.keep(server);
await once(server.stdout, 'data');
const nameServer = await startNameServer(() => [ADDRESSES.proxied], 3_600, stack);
const runner = await TestRunner.open(folder, { nameServer });
stack.defer(() => runner.dispose());
runner.spec = { ...SPEC, egress: { enabled: true, allow: ['web.example', ADDRESSES.straight] } };
runner.want(VM, 1, 'running');
await runner.reported(1, 'running', { of: VM });
await runner.sh(VM, 'nslookup web.example > /dev/null');

/** MiB a second. */
async function rate(command: string): Promise<number> {
  const began = performance.now();
  await runner.sh(VM, command);
  return (Number(mib) * 1000) / (performance.now() - began);
}

for (let round = 0; round < Number(rounds); round += 1) {
  const found: Record<string, number> = {};
  for (const [way, address] of Object.entries(ADDRESSES)) {
    found[`${way}, to the guest`] = await rate(`echo go | nc ${address} 7000 > /dev/null`);
    const zeros = `dd if=/dev/zero bs=64k count=${Number(mib) * 16} 2> /dev/null`;
    found[`${way}, from the guest`] = await rate(`${zeros} | nc ${address} 7000 | grep -q done`);
  }
  console.log(JSON.stringify(found));
}
