/** A network with an internet; started before the tests of the file that imports it. */
import { after, before } from 'node:test';
import { NetworkWorld } from './network-world.ts';

const ZONE: Record<string, string[]> = {
  'web.example': ['203.0.113.2'],
  'api.web.example': ['203.0.113.3'],
  'rebind.web.example': ['10.9.0.2'],
  'other.example': ['203.0.113.3'],
  'big.example': Array.from({ length: 90 }, (_, index) => `203.0.113.${index + 10}`),
};

export let world: NetworkWorld;

before(async () => {
  world = await NetworkWorld.start({
    resolve: (name) => ZONE[name],
    ttl: 30,
    network: { tenantPrivateNetworks: ['10.9.0.0/16', '100.100.0.0/16'] },
  });
});
after(() => world[Symbol.asyncDispose]());

export const FORWARDING = '/proc/sys/net/ipv4/ip_forward';
export const GREETING = 'internet 203.0.113.1\n';
