// A runner that is to be killed: brings the network up and takes and releases slots until then.
// Arguments: JSON of the options without `log`. Prints a line for every sandbox that was given a network.
import pino from 'pino';
import { Network } from '../../src/network/network.ts';
import type { NetworkOptions } from '../../src/network/network-options.ts';

const options = JSON.parse(process.argv[2] ?? '{}') as Omit<NetworkOptions, 'log'>;
const network = await Network.open({ ...options, log: pino({ level: 'silent' }) });
process.stdout.write('open\n');
for (let turn = 0; ; turn += 1) {
  const { hostAddress } = await network.take(`killed-${turn}`, {
    egress: { enabled: true, allow: ['a.example'] },
  });
  process.stdout.write(`killed-${turn} ${hostAddress}\n`);
  if (turn > 2) await network.release(`killed-${turn - 2}`);
}
