/** The configuration of HAProxy as the engine in front of previews. For versions 2.6 to 3.0. Pure. */
import {
  ApiError,
  badRequest,
  type ErrorStatus,
  COMPAT_PREVIEW_TOKEN_HEADER,
  PREVIEW_TOKEN_HEADER,
  PREVIEW_TOKEN_PARAMETER,
  REQUEST_ID_HEADER,
} from '@releap/contract';
import { cookieName, FRAME_COOKIE } from '../targets/preview-credential.ts';

export interface EngineConfig {
  /** Folder of configuration, maps and admin socket, which its worker cannot reach. */
  folder: string;
  /** Root folder of its worker, with the sockets of the gateway. */
  jail: string;
  /** User of its worker. */
  uid: number;
  http: { host: string; port: number };
  tls?: { host: string; port: number };
  /** Clients use https, which the engine or another program terminates. */
  isTls: boolean;
  lanes: number;
  threads: number;
  connections: number;
  /** Addresses and CIDR blocks whose connections are of many clients, and not counted by address. */
  proxies: readonly string[];
  headerBytes: number;
  headerMs: number;
  bodyBytes: number;
  idleMs: number;
  answerMs: number;
}

/** Gives up a connect, and with it the retransmission of its first packet. */
const ENGINE_CONNECT_MS = 2_000;

export const enginePaths = (folder: string) => ({
  config: `${folder}/haproxy.cfg`,
  admin: `${folder}/admin.sock`,
  /** `<host>/<digest of the credential>` to the lane that serves it; without a digest for public endpoints. */
  routes: `${folder}/routes.map`,
  /** Until when the routes are used, in milliseconds since the epoch. */
  until: `${folder}/until.map`,
  certificate: `${folder}/certificate.pem`,
});

/** Sockets of the gateway in the jail: for requests that no route is known for, and for those whose lane refused to connect. */
export const GATEWAY_SOCKETS = { unknown: 'gateway.sock', refused: 'refused.sock' } as const;

export const PREVIEW_FRONTEND = 'previews';

const address = ({ host, port }: { host: string; port: number }): string =>
  host.includes(':') ? `[${host}]:${port}` : `${host}:${port}`;

export const laneName = (index: number): string => `lane${index}`;

/** Tokens of the service, which guests do not get. */
const OWN_BEARER = '^[Bb][Ee][Aa][Rr][Ee][Rr] +rlp[vp]?_[0-9A-Za-z]{43} *$';

function error(status: ErrorStatus, text: string): string {
  // What is not HTTP, or not complete, has no id.
  const id = status >= 500 ? { request_id: '%[var(txn.request_id)]' } : {};
  const body = JSON.stringify({ ...new ApiError(status, text).body, ...id });
  return `  http-error status ${status} content-type "application/json; charset=utf-8" lf-string '${body}' hdr cache-control no-store`;
}

/** Headers of the connection, and those that only the gateway sets. */
const REMOVED = ['keep-alive', 'proxy-connection', 'te', 'trailer'];
const REMOVED_FROM_REQUESTS = [
  ...REMOVED,
  'forwarded',
  'proxy-authorization',
  'x-real-ip',
  PREVIEW_TOKEN_HEADER,
  COMPAT_PREVIEW_TOKEN_HEADER,
];

export function renderEngineConfig(config: EngineConfig): string {
  const { folder, jail, uid, tls, isTls, headerBytes } = config;
  const paths = enginePaths(folder);
  const cookie = cookieName(isTls);
  const removed = (phase: string, names: readonly string[]): string =>
    names.map((name) => `  http-${phase} del-header ${name}`).join('\n');
  // Four times: a replacement changes one of several attributes. What has more is not a cookie of a browser's interest.
  const domain = '^(.*?);[ \\t]*[Dd][Oo][Mm][Aa][Ii][Nn][ \\t]*=[^;]*(.*)$';
  const withoutDomain = Array.from(
    { length: 4 },
    () => `  http-response replace-header set-cookie '${domain}' '\\1\\2' if sets_domain`,
  ).join('\n');
  return `# Written by the gateway at each start.
global
  log stderr format raw local0 notice
  maxconn ${config.connections}
  nbthread ${config.threads}
  uid ${uid}
  gid ${uid}
  chroot ${jail}
  stats socket ${paths.admin} mode 600 level admin
  stats timeout 10s
  tune.bufsize ${Math.max(32_768, 2 * headerBytes)}
  ssl-default-bind-options ssl-min-ver TLSv1.2

defaults
  mode http
  timeout client ${config.idleMs}ms
  timeout connect ${ENGINE_CONNECT_MS}ms
  timeout server ${config.answerMs}ms
  timeout tunnel ${config.idleMs}ms
  timeout http-request ${config.headerMs}ms
  timeout http-keep-alive 75s
  option abortonclose
  option clitcpka
  option srvtcpka
${error(400, 'malformed HTTP request')}
${error(408, 'the request headers took too long')}
${error(502, 'the server at port %[var(txn.port)] of the sandbox did not answer')}
${error(503, 'the preview gateway is restarting; try again')}
${error(504, 'the server at port %[var(txn.port)] of the sandbox did not answer in time')}

frontend ${PREVIEW_FRONTEND}
  bind ${address(config.http)}
${tls === undefined ? '' : `  bind ${address(tls)} ssl crt ${paths.certificate} alpn h2,http/1.1\n`}  # As shareConnections: an address may have as many connections as are free. This one is counted on both sides.
  acl is_proxy src ${config.proxies.join(' ')}
  tcp-request connection track-sc0 src,ipmask(32,64) table clients if !is_proxy
  tcp-request connection set-var(sess.open) fe_conn if !is_proxy
  tcp-request connection set-var(sess.free) int(${config.connections + 1}),sub(sess.open) if !is_proxy
  tcp-request connection reject if !is_proxy { sc0_conn_cur,sub(sess.free) gt 0 }

  unique-id-format %[var(txn.credential)]
  acl has_request_id var(txn.request_id) -m found
  http-request set-var(txn.request_id) req.fhdr(${REQUEST_ID_HEADER}) if { req.fhdr_cnt(${REQUEST_ID_HEADER}) eq 1 } { req.fhdr(${REQUEST_ID_HEADER}) -m reg ^[A-Za-z0-9._-]{1,100}$ }
  http-request set-var(txn.request_id) uuid() if !has_request_id
  http-request set-header ${REQUEST_ID_HEADER} %[var(txn.request_id)]
  http-after-response set-header ${REQUEST_ID_HEADER} %[var(txn.request_id)] unless { res.hdr(${REQUEST_ID_HEADER}) -m found }
  http-request return status 431 content-type "application/json; charset=utf-8" string '${JSON.stringify(badRequest('the request headers are too large').body)}' if { req.hdrs,length gt ${headerBytes} }

  # Whether the policy process has confirmed its routes lately.
  http-request set-var(txn.now) date(0,ms)
  http-request set-var(txn.left) str(until),map_str_int(${paths.until},0),sub(txn.now)
  acl is_fresh var(txn.left) -m int gt 0

  # The 100 Continue is HAProxy's own: responses after one of a server are cut off now and then (HAProxy issue 2587).
  acl expects_continue req.fhdr(expect) -m str -i 100-continue
  http-request wait-for-body time ${config.headerMs}ms at-least 1 if expects_continue
  http-request del-header expect if expects_continue

  # What is not plain goes to the gateway, which answers or refuses it.
  acl is_origin_form url_beg /
  acl is_http2 fc_http_major 2
  acl is_odd req.fhdr_cnt(host) gt 1
  acl is_odd req.fhdr_cnt(${PREVIEW_TOKEN_HEADER}) gt 1
  acl is_odd req.fhdr_cnt(${COMPAT_PREVIEW_TOKEN_HEADER}) gt 1
  acl is_odd req.fhdr_cnt(authorization) gt 1
  acl is_odd req.fhdr_cnt(cookie) gt 1
  acl is_odd req.fhdr_cnt(origin) gt 1
  acl is_odd req.fhdr_cnt(sec-fetch-site) gt 1
  acl is_odd req.fhdr(expect) -m found
  acl is_odd method CONNECT TRACE
  acl is_odd url,url_dec -m sub ${PREVIEW_TOKEN_PARAMETER}
  acl is_odd req.hdr_val(content-length) gt ${config.bodyBytes}
  acl has_coding req.fhdr(transfer-encoding) -m found
  acl is_chunked req.fhdr(transfer-encoding) -m str -i chunked
  acl has_connection req.fhdr(connection) -m found
  acl is_plain_connection req.fhdr(connection) -m reg -i '^(close|keep-alive|upgrade)([ \\t]*,[ \\t]*(close|keep-alive|upgrade))*$'
  acl has_upgrade req.fhdr(upgrade) -m found
  acl is_websocket req.fhdr(upgrade) -m str -i websocket
  http-request set-var(txn.is_odd) bool(true) if is_odd
  http-request set-var(txn.is_odd) bool(true) if !is_origin_form !is_http2
  http-request set-var(txn.is_odd) bool(true) if has_coding !is_chunked
  http-request set-var(txn.is_odd) bool(true) if has_connection !is_plain_connection
  http-request set-var(txn.is_odd) bool(true) if has_upgrade !is_websocket
  acl is_unusual var(txn.is_odd) -m found

  # As findCredential: the header, a token of the service as bearer, the cookie.
  acl has_credential var(txn.credential) -m found
  acl is_own_bearer req.fhdr(authorization) -m reg '${OWN_BEARER}'
  http-request set-var(txn.is_own_bearer) bool(true) if is_own_bearer
  http-request set-var(txn.credential) req.fhdr(${PREVIEW_TOKEN_HEADER}) if { req.fhdr(${PREVIEW_TOKEN_HEADER}) -m len gt 0 }
  http-request set-var(txn.credential) req.fhdr(${COMPAT_PREVIEW_TOKEN_HEADER}) if { req.fhdr(${COMPAT_PREVIEW_TOKEN_HEADER}) -m len gt 0 } !has_credential
  http-request set-var(txn.credential) req.fhdr(authorization),word(2,\\ ) if is_own_bearer !has_credential
  # As cookieUse: a cookie counts here in requests of the host's own pages alone; the gateway decides on all others.
  acl has_cookie req.cook(${cookie}) -m found
  acl has_cookie req.cook(${FRAME_COOKIE}) -m found
  acl has_origin req.fhdr(origin) -m found
  acl has_site req.fhdr(sec-fetch-site) -m found
  acl is_own_site req.fhdr(sec-fetch-site) -m str same-origin none
  http-request set-var-fmt(txn.own_origin) ${isTls ? 'https' : 'http'}://%[req.hdr(host),lower]
  acl is_own_origin req.fhdr(origin),strcmp(txn.own_origin) eq 0
  http-request set-var(txn.is_odd) bool(true) if has_cookie !has_credential has_origin !is_own_origin
  http-request set-var(txn.is_odd) bool(true) if has_cookie !has_credential has_site !is_own_site
  http-request set-var(txn.credential) req.cook(${cookie}) if { req.cook(${cookie}) -m found } !has_credential
${
  isTls
    ? `  http-request set-var(txn.credential) req.cook(${FRAME_COOKIE}) if { req.cook(${FRAME_COOKIE}) -m found } !has_credential
`
    : ''
}
  http-request set-var(txn.host) req.hdr(host),lower,field(1,:)
  http-request set-var(txn.port) var(txn.host),field(1,-)
  http-request set-var-fmt(txn.public) %[var(txn.host)]/
  http-request set-var-fmt(txn.private) %[var(txn.host)]/%[var(txn.credential),sha2(256),hex]
  acl has_lane var(txn.lane) -m found
  http-request set-var(txn.lane) var(txn.private),map_str(${paths.routes}) if is_fresh !is_unusual has_credential
  http-request set-var(txn.lane) var(txn.public),map_str(${paths.routes}) if is_fresh !is_unusual !has_lane
  use_backend guests if has_lane
  default_backend gateway

backend clients
  stick-table type ipv6 size 100k expire 1m store conn_cur

backend gateway
  option http-server-close
  server gateway unix@/${GATEWAY_SOCKETS.unknown} send-proxy-v2

backend guests
  option redispatch 1
  retries 1
  retry-on conn-failure empty-response
  http-request disable-l7-retry unless { method GET HEAD }
${removed('request', REMOVED_FROM_REQUESTS)}
  http-request del-header x-forwarded- -m beg
  http-request del-header authorization if { var(txn.is_own_bearer) -m found }
  http-request set-header cookie %[req.fhdr(cookie),'regsub("(^|;[[:space:]]*)(__Host-)?rlp_preview(_frame)?=[^;]*","",g)','regsub("^;[[:space:]]*","")'] if { req.fhdr(cookie) -m sub rlp_preview= rlp_preview_frame= }
  http-request del-header cookie if { req.fhdr(cookie) -m len 0 }
  http-request set-header host %[req.hdr(host),lower]
  http-request set-header x-forwarded-for %[src]
  http-request set-header x-forwarded-host %[req.hdr(host)]
  http-request set-header x-forwarded-proto ${isTls ? 'https' : 'http'}
${removed('response', REMOVED)}
  acl sets_domain res.fhdr(set-cookie) -m reg -i ';[ \\t]*domain[ \\t]*='
${withoutDomain}
  http-response del-header set-cookie if sets_domain
  use-server %[var(txn.lane)] if { var(txn.lane) -m found }
  # No weight: they are chosen by their name alone. A lane that refuses leads to the gateway, which says why.
  server-template lane 1-${config.lanes} 127.0.0.1:1 weight 0 disabled
  server gateway unix@/${GATEWAY_SOCKETS.refused} send-proxy-v2 proxy-v2-options unique-id weight 1
`;
}
