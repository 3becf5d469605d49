import type { Logger } from 'pino';
import type { SecretsSource } from './intercept/secrets-client.ts';
import type { StoreProxyOptions } from './stores/store-proxy.ts';

export interface NetworkOptions {
  /** Folder for our state; made when it is not there. */
  dir: string;
  /** What tells this service from others on the machine: the absolute path of its home. */
  identity: string;
  /** Address of the host at which declared ports are published. */
  listenHost: string;
  log: Logger;
  /** Most sandboxes at once, 1 to 1019. Default 256. */
  slots?: number;
  /** Spare slots kept ready. Default 8. */
  ahead?: number;
  /** Resolves when a core is free for making them. Default: at once. */
  idleCapacity?: (signal: AbortSignal) => Promise<void>;
  /** How long the address of a released network is not used again, in milliseconds. Default `ADDRESS_WITHHELD_MS`. */
  withholdMs?: number;
  /** First of the user ids of the slots' owners. */
  uidBase?: number;
  /** IPv4 range from which the service picks its block. */
  range?: string;
  /** A user of the host, beside the runner's own, who may connect to sandboxes: the engine of previews. */
  clientUid?: number | undefined;
  /** Called when the network of a sandbox is about to be removed, and when it was. */
  onRelease?: (vmId: string) => void;
  /** Name servers to ask, `address` or `address:port`. Default: the host's /etc/resolv.conf. */
  dnsUpstreams?: readonly string[];
  /** Private networks, as CIDR, that the egress policies of tenants may open. Default none. */
  tenantPrivateNetworks?: readonly string[];
  /** Where values of secrets come from; absent: placeholders are not replaced. */
  secrets?: {
    source: SecretsSource;
    /** Certificates of authorities, PEM, besides those of the host. */
    extraCa?: string | undefined;
  };
  /** Where mounted object stores come from; absent: sandboxes cannot mount any. */
  stores?: Pick<StoreProxyOptions, 'changed' | 'privateHosts' | 'extraCa'>;
  /** A file for what a sandbox was denied, for when its network has ended; absent: it is forgotten then. */
  deniedPath?: (vmId: string) => string;
  /** How often to look whether our firewall table is still there, in milliseconds. Default 10 000. */
  firewallWatchMs?: number;
  /** A netd that takes longer than this for anything has hung, in milliseconds. Default 20 000. */
  netdReplyMs?: number;
  /** Version of the netd that is started; one of another is replaced. Default: that of this installation. */
  netdVersion?: string;
  /** Folder for what belongs to the machine and not to one service; must not outlive a boot. */
  runDir?: string;
}
