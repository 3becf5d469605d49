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

/**
 * API keys must not leave a machine over plain HTTP unless the operator asks for that. `RELEAP_TRUSTED_PROXIES` does not tell
 * whether a proxy speaks TLS to clients: it also lists control servers, for gateways.
 * @throws ConfigError
 */
export function assertEncrypted(config: Config, role: 'all' | 'control' | 'gateway'): void {
  if (config.plainHttp || isLoopback(config.host)) return;
  const roles = role === 'all' ? (['control', 'gateway'] as const) : [role];
  const plain = roles
    .flatMap((one) => LISTENERS[one](config))
    .filter(({ url }) => url?.startsWith('https:') !== true);
  if (plain.length === 0) return;
  const list = (items: string[]): string => items.join(' and ');
  throw new ConfigError([
    `RELEAP_HOST=${config.host}: clients on other machines would send API keys to ${list(plain.map(({ name }) => name))} over ` +
      'plain HTTP. Listen on a loopback address (RELEAP_HOST=127.0.0.1), or put a proxy with TLS in front and set ' +
      `${list(plain.map(({ variable }) => variable))} to its https:// URL, or allow plain HTTP with RELEAP_PLAIN_HTTP=1, ` +
      'for example in an encrypted private network',
  ]);
}
