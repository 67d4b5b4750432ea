-- What was ordered and what is paid of it, in open windows too: made anew in each run.
CREATE MATERIALIZED VIEW revenue_by_window AS
SELECT
  window(placed_at, '15 minutes').start AS start,
  item,
  sum(amount) AS ordered,
  coalesce(sum(paid), 0) AS paid
FROM orders
LEFT JOIN payments USING (order)
GROUP BY window(placed_at, '15 minutes'), item;
