import { readFile } from 'node:fs/promises';
import { availableParallelism } from 'node:os';
import path from 'node:path';
import type { MaintainedCertificate } from '@releap/certificates';
import { type GatewayOptions, generateHostKey, startGateway } from '@releap/gateway';
import { type Config, internalUrlOf, previewUrlOf, toolboxUrlOf, urlHost } from '../config/config.ts';
import { plainHttpWarning } from '../config/plain-http.ts';
import { makePrivateFile } from '@releap/certificates/private-file';
import { localRunner } from '../local-runner.ts';
import { previewUid } from '../preview-uid.ts';
import {
  preferPort,
  PREVIEW_PORT_OFFSET,
  REVERSE_PORT_OFFSET,
  SSH_PORT_OFFSET,
} from '../supervisor/ports.ts';
import { tokenFile, tokenToShow } from '../tokens.ts';
import { Registry } from 'prom-client';
import {
  certificateMetrics,
  functionMetrics,
  hostCertificateMetric,
  serveMetrics,
  serveMetricsToOthers,
} from './gateway-metrics.ts';
import { startPreviewCertificate } from './preview-certificate.ts';
import type { RoleContext, RunningRole } from './run-role.ts';

/** The data plane: what reaches a sandbox from outside. */
export async function gatewayRole({ config, log, supervised }: RoleContext): Promise<RunningRole> {
  const missing = (): never => {
    throw new Error(`the role gateway needs RELEAP_GATEWAY_TOKEN, or ${tokenFile(config, 'gateway')}`);
  };
  if ((await tokenToShow(config, 'gateway')) === undefined) missing();
  const port = config.gatewayPort ?? config.port + 1;
  const previewUrl = previewUrlOf(config, config.previewPort ?? config.port + PREVIEW_PORT_OFFSET);
  const previewPlace = previewUrl === undefined ? undefined : new URL(previewUrl);
  await using cleanup = new AsyncDisposableStack();
  const certificate = await previewCertificate(config, previewPlace, log);
  const registry = new Registry();
  if (certificate !== undefined) {
    cleanup.defer(() => certificate.close());
    certificateMetrics(registry, certificate);
  }
  const metrics = await serveMetrics(path.join(config.home, 'run/gateway.sock'), registry).catch(
    (error: unknown) =>
      // Such as a path that is too long for a socket: calls are served all the same.
      log.warn({ err: error }, 'the gateway serves no metrics'),
  );
  if (metrics !== undefined) cleanup.use(metrics);
  await serveToScrapers(config, supervised, registry, cleanup);
  const gateway = await startGateway({
    listen: { host: config.host, port },
    ...(previewPlace === undefined ? {} : { previews: previewOptions(config, previewPlace, certificate) }),
    controlUrl: internalUrlOf(config),
    controlTrust: {
      file: path.join(config.home, 'control-ca.pem'),
      fingerprint: config.controlFingerprint,
    },
    credential: async () => (await tokenToShow(config, 'gateway')) ?? missing(),
    localRunner: localRunner(config),
    ...(await reverseListen(config)),
    ssh: await sshOptions(config),
    trustedProxies: config.trustedProxies ?? [],
    limits: { guesses: config.rateLimits.perAddress },
    log,
  });
  cleanup.defer(() => gateway.close());
  const warning = plainHttpWarning(config, 'gateway');
  if (warning !== undefined) log.warn({ host: config.host }, warning);
  functionMetrics(registry, () => gateway.functions());
  hostCertificateMetric(registry, gateway.certificate);
  const owned = cleanup.move();
  const close = (): Promise<void> => owned.disposeAsync();
  // The service of one machine stops as a whole: what its requests lead to ends, too.
  const drainMs = supervised ? 0 : config.gatewayDrainS * 1000;
  const hurry = new AbortController();
  return {
    facts: { url: config.toolboxUrl ?? toolboxUrlOf(`http://${urlHost(config.host)}:${gateway.port}`) },
    stop: close,
    async detach() {
      await gateway.drain(drainMs, hurry.signal);
      await close();
    },
    drainMs,
    hurry: () => hurry.abort(),
  };
}

/** @throws when no user could read them */
async function serveToScrapers(
  config: Config,
  supervised: boolean,
  registry: Registry,
  cleanup: AsyncDisposableStack,
): Promise<void> {
  const { host, gatewayMetricsPort: port } = config;
  if (port === undefined || supervised) return;
  const credential = async (): Promise<string> => {
    const token = await tokenToShow(config, 'metrics');
    if (token !== undefined) return token;
    throw new Error(
      `RELEAP_GATEWAY_METRICS_PORT needs RELEAP_METRICS_TOKEN, or ${tokenFile(config, 'metrics')}`,
    );
  };
  await credential();
  cleanup.use(await serveMetricsToOthers({ host, port }, credential, registry));
}

async function previewCertificate(
  { home, previewTls }: Config,
  place: URL | undefined,
  log: RoleContext['log'],
): Promise<MaintainedCertificate | undefined> {
  if (previewTls === undefined || place === undefined) return undefined;
  return await startPreviewCertificate(previewTls, { home, domain: place.hostname.toLowerCase(), log });
}

function previewOptions(
  { home, host, port, previewPort, previewEngine, previewTls }: Config,
  { hostname, protocol }: URL,
  certificate: MaintainedCertificate | undefined,
): NonNullable<GatewayOptions['previews']> {
  const options = {
    domain: hostname.toLowerCase(),
    isTls: protocol === 'https:',
    listen: { host, port: previewPort ?? port + PREVIEW_PORT_OFFSET },
    ...(previewEngine === 'haproxy' && {
      engine: { folder: path.join(home, 'run', 'previews'), uid: previewUid(home), threads: engineThreads() },
    }),
  };
  if (previewTls === undefined || certificate === undefined) return options;
  return {
    ...options,
    tls: {
      listen: { host, port: previewTls.port },
      load: () => certificate.served(),
      onChange: (listener) => certificate.onChange(listener),
    },
  };
}

/** Most of the machine is for sandboxes; one thread passes tens of thousands of requests a second. */
const engineThreads = (): number => Math.min(4, Math.max(1, Math.floor(availableParallelism() / 4)));

async function reverseListen({ port, reverse }: Config): Promise<Pick<GatewayOptions, 'reverse'>> {
  if (reverse === undefined) return {};
  const { host } = reverse;
  const wanted = port === 0 ? 0 : port + REVERSE_PORT_OFFSET;
  return { reverse: { host, port: reverse.port ?? (await preferPort(host, wanted)) } };
}

async function sshOptions({ port, ssh }: Config) {
  const { host, hostKeyFile } = ssh;
  const listen = { host, port: ssh.port ?? port + SSH_PORT_OFFSET };
  // Made once: clients remember it.
  await makePrivateFile(hostKeyFile, generateHostKey());
  const hostKeys = [await readFile(hostKeyFile, 'utf8')];
  return { listen, hostKeys, publicAddress: publicAddress(ssh.address, listen) };
}

/** As a client names it: IPv6 without brackets. */
function publicAddress(
  address: string | undefined,
  listen: { host: string; port: number },
): { host: string; port: number } {
  const [, host, port] = /^(.*?)(?::(\d+))?$/.exec(address ?? urlHost(listen.host)) ?? [];
  return {
    host: (host ?? listen.host).replace(/^\[|\]$/g, ''),
    port: port === undefined ? listen.port : Number(port),
  };
}
