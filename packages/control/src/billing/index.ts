/** What the configuration of a server needs to know of billing, without the rest of the control plane. */
export { price, PRICE_DEFAULTS, type Prices } from './prices.ts';
export {
  BILLING_MODES,
  BILLING_SETTINGS,
  OVERDRAFT_DEFAULT,
  type BillingMode,
  type BillingSettings,
} from './settings.ts';
