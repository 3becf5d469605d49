import { networkInterfaces } from 'node:os';
import { isPublicAddress } from '@releap/contract/address-policy';
import { type Config, ConfigError, isLocalName, isLoopback, previewUrlOf } from './config.ts';

/** URL of a listener for clients, if a setting says it. With https:// there is TLS in front of the listener. */
interface Listener {
  name: string;
  variable: string;
  url: string | undefined;
}

const LISTENERS = {
  control: ({ publicUrl }: Config): Listener[] => [
    { name: 'the API', variable: 'RELEAP_PUBLIC_URL', url: publicUrl },
  ],
  gateway: (config: Config): Listener[] => [
    { name: 'the gateway', variable: 'RELEAP_TOOLBOX_URL', url: config.toolboxUrl },
    ...previewsOf(config),
  ],
};

/** None where clients have no previews, or only those of their own machine (`*.localhost`). */
function previewsOf(config: Config): Listener[] {
  const url = previewUrlOf(config, 0);
  if (url === undefined || isLocalName(new URL(url).hostname)) return [];
  return [{ name: 'previews', variable: 'RELEAP_PREVIEW_URL', url }];
}

type Role = 'all' | 'control' | 'gateway';

/** The listeners that clients on other machines reach without TLS, as far as the settings tell. None where that is allowed. */
export function plainListeners(config: Config, role: Role): Listener[] {
  if (config.plainHttp || isLoopback(config.host)) return [];
  const roles = role === 'all' ? (['control', 'gateway'] as const) : [role];
  return roles
    .flatMap((one) => LISTENERS[one](config))
    .filter(({ url }) => url?.startsWith('https:') !== true);
}

/**
 * API keys must not cross the internet over plain HTTP unless the operator asks for that. In a private network, which may be encrypted
 * itself, the roles warn. `RELEAP_TRUSTED_PROXIES` does not tell whether a proxy speaks TLS to clients: it also lists control servers,
 * for gateways.
 * @param addresses of this machine's interfaces
 * @throws ConfigError
 */
export function assertEncrypted(config: Config, role: Role, addresses = interfaceAddresses()): void {
  const plain = plainListeners(config, role);
  const { host } = config;
  const reached = isWildcard(host) ? addresses.find(isPublicAddress) : host;
  if (plain.length === 0 || reached === undefined || !isPublicAddress(reached)) return;
  throw new ConfigError([
    `RELEAP_HOST=${host}: clients would send API keys to ${listed(plain, 'name')} over plain HTTP, at the public address ` +
      `${reached}. Listen on a loopback address (RELEAP_HOST=127.0.0.1), or put a proxy with TLS in front and set ` +
      `${listed(plain, 'variable')} to its https:// URL, or allow plain HTTP with RELEAP_PLAIN_HTTP=1`,
  ]);
}

/** For the log of a server that starts. */
export function plainHttpWarning(config: Config, role: Role): string | undefined {
  const plain = plainListeners(config, role);
  if (plain.length === 0) return undefined;
  return (
    `clients on other machines send API keys to ${listed(plain, 'name')} over plain HTTP: put a proxy with TLS in front, and set ` +
    `${listed(plain, 'variable')} to its https:// URL, or set RELEAP_PLAIN_HTTP=1`
  );
}

const listed = (plain: Listener[], key: 'name' | 'variable'): string =>
  plain.map((listener) => listener[key]).join(' and ');

const isWildcard = (host: string): boolean => ['0.0.0.0', '::', '[::]'].includes(host);

function interfaceAddresses(): string[] {
  return Object.values(networkInterfaces()).flatMap((all) => (all ?? []).map(({ address }) => address));
}
