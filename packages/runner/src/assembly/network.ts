/** The networks of the sandboxes of a runner. */
import { join } from 'node:path';
import type { Admission } from '../machine/index.ts';
import type { SecretsClient } from '../network/intercept/secrets-client.ts';
import { Network } from '../network/network.ts';
import type { AddressStreams } from '../ports/address-streams.ts';
import type { RunnerOptions } from '../runner-options.ts';

export interface NetworkParts {
  options: RunnerOptions;
  /** Of the runner's state. */
  folder: string;
  logsFolder: string;
  secrets: SecretsClient;
  admission: Admission;
  addresses: AddressStreams;
}

export async function openNetwork(parts: NetworkParts): Promise<Network> {
  const { options, folder, logsFolder, secrets, admission, addresses } = parts;
  return await Network.open({
    clientUid: options.previewUid,
    onRelease: (vmId) => addresses.end(vmId),
    dir: join(folder, 'network'),
    identity: options.home,
    listenHost: options.listenHost,
    tenantPrivateNetworks: options.tenantPrivateNetworks,
    deniedPath: (vmId) => join(logsFolder, vmId, 'denied.json'),
    secrets: { source: secrets, extraCa: options.egressCa },
    stores: {
      changed: (sandboxes) => secrets.changedStores(sandboxes),
      privateHosts: options.storePrivateHosts ?? [],
      extraCa: options.egressCa,
    },
    idleCapacity: (signal) => admission.idleCapacity(signal),
    log: options.log.child({ part: 'network' }),
  });
}
