import { once } from 'node:events';
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import type { Duplex } from 'node:stream';
import { setTimeout as sleep } from 'node:timers/promises';
import {
  ControlAccess,
  type ControlTrust,
  DataHosts,
  HostCertificate,
  type LocalRunner,
  ReverseConnections,
} from '@releap/certificates/hosts';
import {
  ApiError,
  type GatewayTarget,
  hasBody,
  internalError,
  newUuid,
  REQUEST_ID_HEADER,
  requestIdSource,
  unavailable,
} from '@releap/contract';
import type { Logger } from 'pino';
import { requestCertificate } from './control/certificate-client.ts';
import { type GrantLease, Grants } from './control/grants.ts';
import { type ReverseListen, startReverseListener } from './control/reverse-listener.ts';
import { answerMalformed } from './http/client-error.ts';
import { shareConnections } from './http/connection-share.ts';
import { ClientDisconnected, sendError } from './http/errors.ts';
import { EventCounter } from './http/event-counter.ts';
import { PROBES } from './http/probes.ts';
import { proxy } from './http/proxy.ts';
import { engineClientOf } from './engine/engine-listener.ts';
import { type PreviewFront, type PreviewFrontOptions, startPreviewFront } from './engine/preview-front.ts';
import { sendRedirect } from './http/redirect.ts';
import { headOf } from './http/request-head.ts';
import { traceRequest } from './http/trace-request.ts';
import { TrustedProxies } from './http/trusted-proxies.ts';
import { refuseUpgrade, tunnel, wantsWebSocket } from './http/upgrade.ts';
import { GATEWAY_LIMITS, type GatewayLimits } from './limits.ts';
import {
  Dispatcher,
  DISPATCHER_LIMITS,
  type DispatcherLimits,
  type DispatcherLoad,
} from './functions/dispatcher.ts';
import { isFunctionPath, routeFunctionCall } from './functions/function-route.ts';
import { FunctionServer, refuseCall } from './functions/function-server.ts';
import { InvocationRecords } from './functions/invocation-records.ts';
import { RunningCalls } from './functions/running-calls.ts';
import { createRouter } from './targets/router.ts';
import { SshRoutes } from './ssh/ssh-routes.ts';
import { startSshServer, type SshServer } from './ssh/ssh-server.ts';
import type { SshLimits } from './ssh/ssh-limits.ts';
import type { RequestHead, Route, TargetKind } from './targets/target.ts';
import { preview, type PreviewOptions } from './targets/preview.ts';
import { parsePreviewHost } from './targets/preview-host.ts';
import { toolbox } from './targets/toolbox.ts';
import { TOOLBOX_PREFIX } from './targets/toolbox-path.ts';
import { type Upstream, Upstreams } from './targets/upstreams.ts';

export interface GatewayOptions {
  listen: {
    host: string;
    /** 0 for any free one. */
    port: number;
  };
  /** Internal listener of the control plane: `http(s)://host:port` or `unix:/absolute/path.sock`. */
  controlUrl: string;
  /** What its certificate is verified with, where it is on another machine. */
  controlTrust?: ControlTrust;
  /** The gateway's credential for that listener; read for each connection. */
  credential: () => Promise<string>;
  /** Kinds that this gateway routes; the first match wins. Default: previews, if there are any, and the toolbox. */
  kinds?: readonly TargetKind[];
  /** Without it, previews are not served. */
  previews?: PreviewOptions & PreviewFrontOptions;
  /** Without it, SSH is not served. */
  ssh?: {
    listen: { host: string; port: number };
    /** Private keys, in OpenSSH's or PEM form. */
    hostKeys: readonly string[];
    /** Where clients reach it, if not where it listens. */
    publicAddress?: { host: string; port: number };
    limits?: Partial<SshLimits>;
  };
  /** Where hosts that accept no connections open them; without it they are not reached. */
  reverse?: ReverseListen;
  /** The runner of the same home, which is reached over its Unix socket. */
  localRunner?: LocalRunner;
  /** Calls of functions. */
  functions?: Partial<DispatcherLimits>;
  /** Addresses and CIDR blocks of proxies in front, besides those of this machine. */
  trustedProxies?: readonly string[];
  log: Logger;
  limits?: Partial<GatewayLimits>;
}

/** How often it is looked whether all has ended. */
const DRAIN_POLL_MS = 200;
/** Longer than load balancers and clients keep an idle connection: one of them may send a request while it is closed here. */
const KEEP_ALIVE_MS = 75_000;

/** Of functions, beside those of `kinds`. */
const FUNCTION_KINDS = ['function', 'function-instance'];

export interface Gateway {
  port: number;
  /** The listener for previews alone, if there is one. */
  previews: { port: number; isEngine: boolean } | undefined;
  /** The TLS listener, if there is one. */
  tls: { port: number } | undefined;
  /** The SSH listener, if there is one. */
  ssh: Pick<SshServer, 'port' | 'hostKeys'> | undefined;
  /** What it shows to runners on other machines. */
  certificate: Pick<HostCertificate, 'current'>;
  /** Calls of functions, and their instances. */
  functions(): DispatcherLoad;
  /**
   * Lets open requests and connections end, for at most this long: `/healthz` and `/readyz` answer 503, connections are not kept alive, and
   * calls of functions without an instance here are refused. Resolves when nothing is open; `close` follows.
   * @param hurry aborted to end it early
   */
  drain(ms: number, hurry?: AbortSignal): Promise<void>;
  /** Refuses new requests, and after a grace period ends open ones. */
  close(): Promise<void>;
}

/** Starts the gateway: it routes requests to sandboxes. */
export async function startGateway(options: GatewayOptions): Promise<Gateway> {
  const { listen, log, previews } = options;
  const kinds = options.kinds ?? [...(previews === undefined ? [] : [preview(previews)]), toolbox];
  const limits = { ...GATEWAY_LIMITS, ...options.limits };
  const findRoute = createRouter(kinds);
  const gatewayId = newUuid();
  const access = new ControlAccess(options.controlUrl, options.controlTrust);
  const control = access.peer;
  const certificate = new HostCertificate({
    issue: (request) => requestCertificate({ control, credential: options.credential, gatewayId }, request),
    log,
  });
  certificate.onChange(({ roots }) => {
    access
      .follow(roots)
      .catch((error: unknown) => log.warn({ err: error }, 'the roots of control were not stored'));
  });
  const credential = async (): Promise<string> => {
    // Its roots follow with certificates.
    if (await access.isPinned()) await certificate.get().catch(() => undefined);
    return await options.credential();
  };
  const reverse = new ReverseConnections({
    certificate,
    ask: (runnerId, address) => grants.wantConnections(runnerId, address),
    log,
  });
  const grants = new Grants({
    control,
    hosts: new DataHosts({ certificate, local: options.localRunner, reverse, connectMs: limits.connectMs }),
    credential,
    log,
    kinds: [
      ...kinds.map(({ kind }) => kind),
      ...(options.ssh === undefined ? [] : ['ssh']),
      ...FUNCTION_KINDS,
    ],
    decisionMs: limits.decisionMs,
    gatewayId,
    onPressure({ function_ids: functionIds, instances = [], idle }) {
      dispatcher.pressure(functionIds);
      dispatcher.retire(instances);
      if (idle !== undefined) dispatcher.giveUpIdle(idle.instances, idle.most);
    },
  });
  const dispatcher = new Dispatcher({
    leases: grants.instances,
    limits: { ...DISPATCHER_LIMITS, ...options.functions },
    log,
  });
  const running = new RunningCalls();
  const records = new InvocationRecords({ control, credential: options.credential, running, log });
  const functions = new FunctionServer({
    grants,
    dispatcher,
    uploadIdleMs: limits.uploadIdleMs,
    running,
    guesses: new EventCounter(limits.guesses === 0 ? Infinity : limits.guesses),
    onFinished: (call) => records.add(call),
  });
  const upstreams = new Upstreams({
    headersMs: limits.answerMs,
    bodyMs: limits.idleMs,
  });
  const proxies = new TrustedProxies(options.trustedProxies);
  const tunnels = new Set<Duplex>();
  let isDraining = false;
  /** Requests that are not answered yet. */
  let open = 0;
  let front: PreviewFront | undefined;
  const newRequestId = requestIdSource();
  const requestIdOf = (request: IncomingMessage): string => newRequestId(request.headers[REQUEST_ID_HEADER]);

  const server = createServer({
    maxHeaderSize: limits.headerBytes,
    headersTimeout: limits.headerMs,
    // A body may take any time while bytes arrive; `uploadIdleMs` bounds the time without any.
    requestTimeout: 0,
    keepAliveTimeout: KEEP_ALIVE_MS,
    // Detects clients that disappeared without closing the connection during a long response.
    keepAlive: true,
    keepAliveInitialDelay: 30_000,
    noDelay: true,
    shouldUpgradeCallback: wantsWebSocket,
  });
  shareConnections(server, limits.connections, proxies);

  /** The hosts of previews have no paths of the gateway. */
  const isPreview = ({ headers }: RequestHead): boolean =>
    previews !== undefined && parsePreviewHost(headers.host, previews.domain) !== undefined;
  /** What the gateway answers without a target. */
  const ownAnswer = (head: RequestHead): object | undefined => {
    if (!PROBES.has(head.url) || (head.method !== 'GET' && head.method !== 'HEAD'))
      return sshRoutes?.hostKeys(head);
    if (isDraining && head.url !== '/livez') throw unavailable('the gateway is stopping');
    // Once, not always: where all gateways lost the control plane, clients would get no answer instead of one that says so.
    if (head.url === '/readyz' && !grants.wasLinked)
      throw unavailable('the gateway has not reached the control plane yet');
    return { status: 'ok' };
  };

  /** Further requests of this kind go straight to the sandbox, if the engine can. */
  const offer = ({ target, token }: Route, upstream: Upstream, lease: GrantLease): void => {
    if (target.kind !== 'preview' || previews === undefined || !upstream.isAtAddress()) return;
    front?.engine()?.offer(previewName(target, previews.domain), target, token, lease);
  };
  /** Its lane did not connect: the next requests come here. */
  const noteRefused = ({ target, token }: Route, head: RequestHead): void => {
    if (head.credential === undefined || previews === undefined) return;
    front?.engine()?.refused(previewName(target, previews.domain), token);
  };

  const serve = async (request: IncomingMessage, response: ServerResponse, expectsContinue: boolean) => {
    response.on('error', () => {});
    open++;
    response.once('close', () => open--);
    if (isDraining) response.shouldKeepAlive = false;
    // The engine names the credential of one request only on each of these connections.
    if (engineClientOf(request.socket)?.refused === true) response.shouldKeepAlive = false;
    const requestId = requestIdOf(request);
    response.setHeader(REQUEST_ID_HEADER, requestId);
    let isCall = false;
    let onRefused: Route['onRefused'];
    try {
      const head = headOf(request);
      const own = isPreview(head) ? undefined : ownAnswer(head);
      if (own !== undefined) {
        response.setHeader('content-type', 'application/json; charset=utf-8');
        response.end(JSON.stringify(own));
        return;
      }
      isCall = !isPreview(head) && isFunctionPath(head.url);
      const call = isCall ? routeFunctionCall(head) : undefined;
      if (call !== undefined) {
        const { address } = head;
        await functions.serve(request, response, {
          call,
          requestId,
          address,
          isProxy: proxies.has(address),
          client: proxies.clientOf(address, head.headers['x-forwarded-for']),
          isTls: 'encrypted' in request.socket,
          expectsContinue,
        });
        return;
      }
      const route = findRoute(head);
      const { target, token, redirect, upstreamPath, headers } = route;
      noteRefused(route, head);
      ({ onRefused } = route);
      using lease = await grants.lease(target, token);
      onRefused = undefined;
      if (redirect !== undefined) {
        sendRedirect(response, redirect);
        return;
      }
      const upstream = upstreams.of(route, lease);
      await proxy(request, response, {
        ...upstream,
        path: upstreamPath(lease),
        dataToken: lease.dataToken,
        revoked: lease.revoked,
        headers,
        requestId,
        maxBodyBytes: limits.bodyBytes,
        uploadIdleMs: limits.uploadIdleMs,
        idleMs: limits.idleMs,
        expectsContinue,
      });
      offer(route, upstream, lease);
    } catch (error) {
      if (error instanceof ClientDisconnected) return;
      const refusal = explain(error, request, requestId);
      if (isCall) {
        await refuseCall(request, response, refusal, expectsContinue);
        return;
      }
      const own = onRefused?.(refusal);
      if (own !== undefined) {
        if (hasBody(request.headers)) response.shouldKeepAlive = false;
        response.writeHead(own.status, own.headers).end(own.body);
        return;
      }
      // A client that waits for 100 Continue and gets an error may still send its body.
      sendError(response, refusal, !hasBody(request.headers));
    }
  };

  const explain = (error: unknown, request: IncomingMessage, reqId: string): ApiError => {
    const refusal = error instanceof ApiError ? error : internalError(error);
    if (refusal.status >= 500) {
      const path = request.url?.split('?', 1)[0];
      // Previews and functions fail as guests like.
      const isOfGuest = isPreview(headOf(request)) || isFunctionPath(request.url ?? '');
      log[isOfGuest && error instanceof ApiError ? 'debug' : 'warn'](
        { err: refusal.cause ?? error, status: refusal.status, path, reqId },
        'a request failed',
      );
    }
    const isToolbox = request.url?.startsWith(TOOLBOX_PREFIX) === true && !isPreview(headOf(request));
    return isToolbox ? withMessage(refusal) : refusal;
  };

  server.on('request', (request, response) =>
    traceRequest(request, response, () => void serve(request, response, false)),
  );
  server.on('checkContinue', (request, response) =>
    traceRequest(request, response, () => void serve(request, response, true)),
  );
  server.on('upgrade', (request: IncomingMessage, client: Duplex, first: Buffer) => {
    tunnels.add(client);
    client.on('error', () => client.destroy());
    client.once('close', () => tunnels.delete(client));
    const requestId = requestIdOf(request);
    const run = async () => {
      const login = isPreview(headOf(request)) ? undefined : sshRoutes?.login(headOf(request));
      if (login !== undefined) {
        using _granted = await grants.lease(login.target, login.token);
        sshRoutes?.accept(request, client, first, login);
        return;
      }
      const head = headOf(request);
      const route = findRoute(head);
      const { target, token, upstreamPath, headers } = route;
      noteRefused(route, head);
      using lease = await grants.lease(target, token);
      const { handshakeMs, idleMs } = limits;
      const upstream = upstreams.of(route, lease);
      await tunnel(request, client, first, {
        ...upstream,
        onOpen: () => offer(route, upstream, lease),
        path: upstreamPath(lease),
        dataToken: lease.dataToken,
        revoked: lease.revoked,
        headers,
        requestId,
        handshakeMs,
        idleMs,
      });
    };
    run().catch((error: unknown) => {
      if (error instanceof ClientDisconnected) client.destroy();
      else refuseUpgrade(client, explain(error, request, requestId), requestId);
    });
  });
  server.on('clientError', answerMalformed);

  const ssh = options.ssh === undefined ? undefined : await startSshServer({ ...options.ssh, grants, log });
  const sshRoutes =
    ssh === undefined
      ? undefined
      : new SshRoutes({
          server: ssh,
          address: options.ssh?.publicAddress ?? { host: options.ssh?.listen.host ?? '', port: ssh.port },
        });

  const endReverse = options.reverse && (await startReverseListener(options.reverse, reverse));
  server.listen({ host: listen.host, port: listen.port });
  await once(server, 'listening');
  const { port } = server.address() as AddressInfo;
  front = previews && (await startPreviewFront(previews, { http: server, grants, limits, proxies, log }));
  log.info({ host: listen.host, port, kinds: kinds.map(({ kind }) => kind) }, 'the gateway listens');

  return {
    port,
    previews:
      front?.port === undefined ? undefined : { port: front.port, isEngine: front.engine() !== undefined },
    tls: front?.tls,
    ssh,
    certificate,
    functions: () => dispatcher.load(),
    async drain(ms, hurry) {
      isDraining = true;
      dispatcher.drain();
      const deadline = performance.now() + ms;
      const isBusy = async (): Promise<boolean> =>
        open + tunnels.size + (ssh?.connections() ?? 0) > 0 ||
        ((await front?.engine()?.connections()) ?? 0) > 0;
      while (performance.now() < deadline && (await isBusy())) {
        await sleep(Math.min(DRAIN_POLL_MS, ms), undefined, { signal: hurry }).catch(() => undefined);
        if (hurry?.aborted === true) return;
      }
    },
    close: async () => {
      const closed = once(server, 'close');
      server.close();
      await front?.close();
      server.closeIdleConnections();
      const timer = setTimeout(() => server.closeAllConnections(), limits.graceMs);
      for (const client of tunnels) client.destroy();
      await Promise.all([closed, ssh?.close()]);
      clearTimeout(timer);
      await functions.close();
      dispatcher.close();
      await records.close(limits.graceMs);
      await Promise.all([upstreams.destroy(), grants.close()]);
      endReverse?.();
      certificate.close();
    },
  };
}

/** SDKs of the protocol that the toolbox speaks show `message`. */
function withMessage({ status, code, message, headers, body, cause }: ApiError): ApiError {
  const fields = { ...body, message, statusCode: status };
  return new ApiError(status, message, { code, headers, fields, cause });
}

/** Host of a preview, as the engine knows it. */
const previewName = ({ port, sandbox }: GatewayTarget, domain: string): string =>
  `${port}-${sandbox}.${domain}`;
