export {
  type Gateway,
  GATEWAY_LIMITS,
  type GatewayLimits,
  type GatewayOptions,
  startGateway,
} from './server.ts';
