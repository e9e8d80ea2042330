// Figures and tables of report pages.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "tools/report/plot.h"

namespace engine::report {

// Of one drawing: beside another one on a wide page, and on a narrow page, where the text of the
// wide one would be too small.
constexpr double kWide = 540, kNarrow = 340;

// CurvePlot for both widths below a title; a key names the curves where they have several colours.
// Empty if there is no curve with points.
std::string CurveFigure(const std::string& title, std::vector<Curve> curves,
                        const PlotAxes& axes = {});

using Cells = std::vector<std::string>;
// Numbers in rows, of which the first is the head; empty without a second one.
std::string Table(const std::string& title, const std::vector<Cells>& rows);
// Names and values; empty without any.
std::string FactTable(const std::string& title,
                      const std::vector<std::pair<std::string, std::string>>& facts);

}  // namespace engine::report
